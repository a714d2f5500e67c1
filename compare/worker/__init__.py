"""Do what one rank does. This package is started, never imported."""
