"""The dense nets: plain torch modules behind one small interface; see README.md in this folder."""
