"""Observers: they listen to what moves and computes; nothing else knows them."""
