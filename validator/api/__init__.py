"""The HTTP service: thin routes over a service that the driver owns, behind one line of defence."""
