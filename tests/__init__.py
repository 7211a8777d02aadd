"""Tests of Brigade; a package so that ``tests.support`` can be imported from any of them."""
