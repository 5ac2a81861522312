"""Time to accuracy of repeated trainings: how long, how stable, how good, and against another."""
