"""What cheating pays: whole runs on the rule book, in which only the finding of a check is drawn by lot.

The rule book is the real one (or, side by side with it, the program): draws, verdicts, votes, witnesses,
points, debts. What a check finds in a cheat's message is given as measured cases, since no gradient has a
place here.
docs/economy.md has what comes out.
"""
