"""What a person looks at: tables for the terminal, pictures of runs."""
