"""The dense nets: plain torch modules behind one small interface."""
