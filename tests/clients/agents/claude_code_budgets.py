"""Claude Code with the slug of an older model that it knows: it thinks within a budget of tokens."""

from tests.clients.agents.claude_code import edits
from tests.clients.python.harness import serve

CASES = {"edits a file within a budget": edits}

if __name__ == "__main__":
    serve(CASES)
