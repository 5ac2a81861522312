"""Results of two checkouts of perfmodel, compared."""
