"""Floor 4: generators, trainers and the way weights travel between them. Needs torch and transformers."""
