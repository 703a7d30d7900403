"""
From the training thread's marks to windows.

`marks` is what the training thread appends to, `steps` and `phases` are what it does so with, `timeline`
folds the marks into `windows` on the reporter thread.
"""
