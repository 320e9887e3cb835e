//! Logs, progress and error reports of the programs.
