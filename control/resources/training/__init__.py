"""The rules of training: projects, jobs and their states, what trainers report, sessions."""
