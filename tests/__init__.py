"""The Python tests: README.md says what each room holds."""
