"""The forms in which a model's layers are split over devices."""
