"""The command line, one small module a verb: cheap to import, since a verb imports its rooms only to run."""
