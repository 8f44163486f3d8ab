"""samepolicy inside the frameworks that people train with; one module for each."""
