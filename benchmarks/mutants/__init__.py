"""Small faults put into perfmodel, and the tests that notice them."""
