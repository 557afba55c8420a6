"""`make release`: wheel, sdist, bill of materials, notes, image and checksums, the same bits from the same commit."""
