//! The state of a long search in a file, from which it continues after an interruption.

use std::borrow::Cow;
use std::hash::BuildHasher;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use foldhash::fast::FixedState;
use serde::{Deserialize, Serialize};

use super::exit::{OrUsage, usage};
use super::plan::Course;

/// The contents of a file.
#[derive(Serialize, Deserialize)]
pub(super) struct Checkpoint<'a> {
    /// A digest of the program: in another build, the results so far say nothing.
    build: u64,
    seed: u64,
    /// The time spent.
    pub(super) elapsed: Duration,
    pub(super) courses: Cow<'a, [Course]>,
}

impl<'a> Checkpoint<'a> {
    pub(super) fn new(build: u64, seed: u64, elapsed: Duration, courses: &'a [Course]) -> Checkpoint<'a> {
        Checkpoint { build, seed, elapsed, courses: Cow::Borrowed(courses) }
    }

    /// Replaces the file; an interruption leaves the old one or the new one.
    pub(super) fn save(&self, path: &Path) -> Result<()> {
        let new = path.with_added_extension("new");
        let text = serde_json::to_vec(self).context("writing the state of the search as JSON")?;
        std::fs::write(&new, text)
            .and_then(|()| std::fs::rename(&new, path))
            .with_context(|| format!("writing the checkpoint {}", path.display()))
    }
}

/// A search that is to continue; none if there is no such file.
///
/// # Errors
/// The file cannot be read, or belongs to another build, seed or selection of scenarios.
pub(super) fn load(path: &Path, build: u64, seed: u64, courses: &[Course]) -> Result<Option<Checkpoint<'static>>> {
    let about = || format!("the checkpoint {}", path.display());
    let text = match std::fs::read(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        text => text.with_context(about).or_usage()?,
    };
    let found: Checkpoint<'static> = serde_json::from_slice(&text).with_context(about).or_usage()?;
    let names = |courses: &[Course]| courses.iter().map(|course| course.tally.name().to_string()).collect::<Vec<_>>();
    let anew = "remove it to begin anew";
    let other = if found.build != build {
        "another build of this program".into()
    } else if found.seed != seed {
        format!("a search with --seed {}", found.seed)
    } else if names(&found.courses) != names(courses) {
        "a search of other scenarios".into()
    } else {
        return Ok(Some(found));
    };
    Err(usage(format!("{} belongs to {other}; {anew}", about())))
}

/// A digest of this program.
pub(super) fn build() -> Result<u64> {
    let program = std::env::current_exe().and_then(std::fs::read).context("reading this program")?;
    Ok(FixedState::default().hash_one(program))
}
