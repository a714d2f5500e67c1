"""Draw pictures as marks, which a template writes as SVG."""
