"""Support for the notebooks of the book: magics, figures, data sets."""
