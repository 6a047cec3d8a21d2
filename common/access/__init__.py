"""Who may do what: principals and their roles, the file that names them, and the rules of a service's doors."""
