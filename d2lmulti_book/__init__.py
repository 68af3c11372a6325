"""What the notebooks of the book use beside the library: magics, figures, data."""
