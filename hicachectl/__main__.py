"""`hicachectl` and `python -m hicachectl`."""

from __future__ import annotations

from hicachectl.app import main

if __name__ == "__main__":
    main()
