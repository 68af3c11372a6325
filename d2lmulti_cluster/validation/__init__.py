"""Published measurements beside what the model predicts: tables, scores, kinds."""
