//! Pods: whoever may create a pod in one namespace, and the processes that run in it.
