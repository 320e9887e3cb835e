//! A story told on a terminal, chapter by chapter.

use std::io::{self, Write as _};

use anyhow::Context as _;

/// A story in progress.
#[derive(Debug, Default)]
pub struct Story {
    chapter: u32,
}

impl Story {
    /// Begins the next chapter.
    pub fn tell(&mut self, title: &str, text: &str) -> anyhow::Result<()> {
        self.chapter += 1;
        say(&format!("\n{}. {title}\n{text}", self.chapter))
    }
}

/// A paragraph.
pub fn say(text: &str) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{text}").context("write to the terminal")
}
