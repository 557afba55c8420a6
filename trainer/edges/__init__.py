"""The only code of the trainer that touches control, machines and stores."""
