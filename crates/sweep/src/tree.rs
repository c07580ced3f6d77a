//! A copy of the workspace with all mistakes in it, and its build.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::mutate::{Mistake, instrument, mistakes};

/// Where order, recovery or agreement is decided, and what judges them: folders and files, relative to the root.
pub(crate) const SWEPT: &[&str] = &[
    "crates/core/src/objects",
    "crates/core/src/node",
    "crates/locks/src",
    "crates/transactions/src",
    "crates/collectives/src",
    "crates/hamband/src",
    "crates/mu/src",
    "crates/rome/src",
    "crates/rpc/src",
    "crates/swarm/src",
    "crates/fabric/src/endpoint/batch.rs",
    "crates/fabric/src/endpoint/fence.rs",
    "crates/fabric/src/endpoint/marks.rs",
    "crates/core/src/history",
    "crates/mowgli/src/litmus/parse",
    "crates/mowgli/src/model/parse.rs",
    "crates/cli/src/chaos/judge",
];
/// The crates of the systems. Their scenarios are in the worker only if there are mistakes in these.
pub(crate) const SYSTEMS: [&str; 5] = ["hamband", "mu", "rome", "rpc", "swarm"];
/// Packages that the worker does not need, and their folders.
const MORE_PACKAGES: [(&str, &str); 2] = [("mowgli", "crates/mowgli/"), ("farfield-cli", "crates/cli/")];
/// Files in there that only unit tests run.
const PARSERS_AND_JUDGES: [&str; 3] = ["crates/core/src/history", "crates/mowgli/", "crates/cli/"];
/// Files in there that contain scenarios, or code that no scenario runs.
const NOT_SWEPT: &[&str] = &[
    "crates/core/src/node/config",
    "crates/core/src/node/local.rs",
    "crates/core/src/node/metrics.rs",
    "crates/locks/src/mutants.rs",
    "crates/locks/src/scenarios",
    "crates/transactions/src/mutants.rs",
    "crates/transactions/src/scenarios",
    "crates/collectives/src/mutants.rs",
    "crates/collectives/src/scenarios",
    "crates/hamband/src/analysis",
    "crates/hamband/src/check",
    "crates/hamband/src/mutants.rs",
    "crates/hamband/src/scenarios",
    "crates/hamband/src/types",
    "crates/mu/src/mutants.rs",
    "crates/mu/src/scenarios",
    "crates/rome/src/mutants.rs",
    "crates/rome/src/scenarios",
    "crates/rpc/src/mutants.rs",
    "crates/rpc/src/scenarios",
    "crates/swarm/src/mutants.rs",
    "crates/swarm/src/scenarios",
];

/// By file: the ranges that mistakes have put in, each with its number.
type PutIn = BTreeMap<String, Vec<(u32, Range<usize>)>>;

/// A mistake of the workspace.
#[derive(Clone, Debug)]
pub(crate) struct Site {
    pub(crate) file: String,
    pub(crate) mistake: Mistake,
    /// Names the mistake as long as its code does not change: the file, the kind, the texts, and which of several.
    pub(crate) name: String,
}

impl Site {
    /// Whether it is in the crate of a system.
    pub(crate) fn is_of_system(&self) -> bool {
        let in_crates = self.file.strip_prefix("crates/").and_then(|rest| rest.split_once('/'));
        in_crates.is_some_and(|(name, _)| SYSTEMS.contains(&name))
    }

    /// Whether a scenario may run its code. Parsers and judges have unit tests alone.
    pub(crate) fn may_be_in_scenarios(&self) -> bool {
        !PARSERS_AND_JUDGES.iter().any(|files| self.file.starts_with(files))
    }
}

/// All mistakes, in order of files and lines.
pub(crate) fn sites(root: &Path) -> Result<Vec<Site>> {
    let mut sites = Vec::new();
    for file in tracked(root)?.into_iter().filter(|file| is_swept(file)) {
        let text = std::fs::read_to_string(root.join(&file))?;
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for mistake in mistakes(&text).with_context(|| format!("reading {file}"))? {
            let of = format!("{file} | {} | {} | {}", mistake.kind, mistake.was, mistake.becomes);
            let nth = seen.entry(of.clone()).and_modify(|nth| *nth += 1).or_insert(1);
            sites.push(Site { file: file.clone(), mistake, name: format!("{of} | {nth}") });
        }
    }
    Ok(sites)
}

fn is_swept(file: &str) -> bool {
    let is_in = |places: &[&str]| places.iter().any(|place| file.starts_with(place));
    file.ends_with(".rs") && is_in(SWEPT) && !is_in(NOT_SWEPT) && !file.contains("/tests")
}

/// Whether this is the manifest of a crate with files in the sweep.
fn is_manifest_of_swept(file: &str) -> bool {
    let crate_folder = file.strip_suffix("Cargo.toml").filter(|folder| folder.starts_with("crates/"));
    crate_folder.is_some_and(|folder| SWEPT.iter().any(|place| place.starts_with(folder)))
}

/// The files of the checkout that git knows, and new ones.
fn tracked(root: &Path) -> Result<Vec<String>> {
    let listed = Command::new("git").current_dir(root).args(["ls-files", "-co", "--exclude-standard"]).output()?;
    ensure!(listed.status.success(), "git ls-files: {}", String::from_utf8_lossy(&listed.stderr));
    let files = String::from_utf8(listed.stdout)?;
    Ok(files.lines().filter(|file| root.join(file).exists()).map(String::from).collect())
}

/// Makes `to` a link to what `from` is a link to.
fn link_alike(from: &Path, to: &Path) -> Result<()> {
    let target = std::fs::read_link(from)?;
    if std::fs::read_link(to).ok().as_ref() != Some(&target) {
        if to.exists() {
            std::fs::remove_file(to)?;
        }
        std::os::unix::fs::symlink(&target, to).with_context(|| format!("linking {}", to.display()))?;
    }
    Ok(())
}

/// A copy of the workspace.
pub(crate) struct Tree {
    root: PathBuf,
    folder: PathBuf,
    target: PathBuf,
    profile: Profile,
    /// Whether the worker has the scenarios of the systems.
    has_systems: bool,
}

/// How the copy is built.
#[derive(Clone, Copy)]
pub(crate) enum Profile {
    /// For many executions.
    Fast,
    /// For few.
    BuiltSoon,
}

impl Profile {
    const fn name(self) -> &'static str {
        match self {
            Profile::Fast => "sweep",
            Profile::BuiltSoon => "again",
        }
    }
}

/// The manifest with nothing in the feature of the seeded bugs; its list may have several lines.
fn without_mutants(manifest: &str) -> String {
    let mut is_in_list = false;
    let mut kept = Vec::new();
    for line in manifest.lines() {
        let begins = line.starts_with("mutants = ");
        if begins {
            kept.push("mutants = []");
        } else if !is_in_list {
            kept.push(line);
        }
        is_in_list = (begins || is_in_list) && !line.ends_with(']');
    }
    kept.join("\n") + "\n"
}

impl Tree {
    /// A copy for these mistakes.
    pub(crate) fn new(root: &Path, scratch: &Path, profile: Profile, sites: &BTreeMap<u32, Site>) -> Tree {
        let (folder, target) = (scratch.join("tree"), scratch.join("target"));
        Tree { root: root.into(), folder, target, profile, has_systems: sites.values().any(Site::is_of_system) }
    }

    /// Writes the copy with these mistakes. Returns the ranges of each file that a mistake has put in.
    fn write(&self, sites: &[(u32, &Site)]) -> Result<PutIn> {
        let mut put_in = BTreeMap::new();
        for file in tracked(&self.root)? {
            let (from, to) = (self.root.join(&file), self.folder.join(&file));
            std::fs::create_dir_all(to.parent().expect("a file is in a folder"))?;
            if from.is_symlink() {
                link_alike(&from, &to)?;
                continue;
            }
            let of_file: Vec<(u32, &Mistake)> =
                sites.iter().filter(|(_, site)| site.file == file).map(|(id, site)| (*id, &site.mistake)).collect();
            let bytes = std::fs::read(&from)?;
            let bytes = match file.as_str() {
                _ if !of_file.is_empty() => {
                    let (text, ranges) = instrument(std::str::from_utf8(&bytes)?, &of_file);
                    put_in.insert(file.clone(), ranges);
                    text.into_bytes()
                }
                _ if is_manifest_of_swept(&file) => {
                    let text = String::from_utf8(bytes)?;
                    let switch = "[dependencies]\nfarfield-seeded = { path = \"../seeded\" }\n";
                    text.replacen("[dependencies]\n", switch, 1).into_bytes()
                }
                // The edits of the seeded bugs do not fit the lines with mistakes.
                "crates/farfield/Cargo.toml" => without_mutants(&String::from_utf8(bytes)?).into_bytes(),
                "Cargo.toml" => [&bytes[..], PROFILES.as_bytes()].concat(),
                _ => bytes,
            };
            // Unchanged files are not built again.
            if std::fs::read(&to).ok().as_ref() != Some(&bytes) {
                std::fs::write(&to, bytes)?;
                // Tests run scripts.
                std::fs::set_permissions(&to, std::fs::metadata(&from)?.permissions())?;
            }
        }
        Ok(put_in)
    }

    fn cargo(&self, command: &str, package: &str) -> Command {
        let mut cargo = Command::new("cargo");
        cargo.current_dir(&self.folder).env("CARGO_TARGET_DIR", &self.target);
        // Code that is switched off is no fault.
        cargo.env("RUSTFLAGS", "-Awarnings");
        cargo.args([command, "--package", package, "--message-format", "json"]);
        if self.has_systems {
            cargo.args(["--features", "farfield-sweep-worker/systems"]);
        }
        cargo
    }

    /// Builds test programs, with the mistakes of the last [`Tree::build`]: all at once, so that nothing is built twice
    /// for the features of another package. Each is named by its package and its target.
    pub(crate) fn build_tests(&self, programs: &[(&str, &str)]) -> Result<Vec<PathBuf>> {
        let mut build = self.cargo("test", "farfield-sweep-worker");
        build.args(["--no-run", "--profile", self.profile.name(), "--lib"]);
        for (package, target) in programs {
            build.args(["--package", package]);
            if !is_library(package, target) {
                build.args(["--test", target]);
            }
        }
        let built = build.output()?;
        ensure!(built.status.success(), "building the tests:\n{}", String::from_utf8_lossy(&built.stderr));
        let messages = String::from_utf8_lossy(&built.stdout);
        let messages: Vec<serde_json::Value> =
            messages.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let path = |(package, target): &(&str, &str)| {
            let folder = format!("/crates/{}/", package.trim_start_matches("farfield-"));
            let is_it = |message: &&serde_json::Value| {
                let manifest = message["manifest_path"].as_str().unwrap_or_default();
                manifest.contains(&folder) && message["target"]["name"] == *target && message["profile"]["test"] == true
            };
            let found = messages.iter().find(is_it).and_then(|message| message["executable"].as_str());
            found.map(PathBuf::from).with_context(|| format!("cargo built no test program {target} of {package}"))
        };
        programs.iter().map(path).collect()
    }

    /// Writes the copy, and builds the worker if a scenario may run some of the code. Mistakes that the compiler
    /// refuses are removed from `sites`; returns how many. `say` hears of the progress.
    pub(crate) fn build(&self, sites: &mut BTreeMap<u32, Site>, say: impl Fn(&str)) -> Result<usize> {
        let all = sites.len();
        // Those that were refused before are left out at once: unchanged files are not built again.
        let mut known = self.known_refused();
        sites.retain(|_, site| !known.contains(&site.name));
        for round in 1.. {
            let numbered: Vec<(u32, &Site)> = sites.iter().map(|(id, site)| (*id, site)).collect();
            let put_in = self.write(&numbered)?;
            say(&format!("compiling {} mistakes, round {round}", sites.len()));
            let mut check = match self.profile {
                Profile::Fast => self.cargo("check", "farfield-sweep-worker"),
                // Few are refused, so a check before the build would be work for nothing.
                Profile::BuiltSoon => self.build_worker(),
            };
            let is_in = |folder: &str| sites.values().any(|site| site.file.starts_with(folder));
            let more = MORE_PACKAGES.into_iter().filter(|(_, folder)| is_in(folder));
            more.for_each(|(package, _)| _ = check.args(["--package", package]));
            let checked = check.output().context("starting cargo")?;
            if checked.status.success() {
                break;
            }
            let messages = String::from_utf8_lossy(&checked.stdout);
            // An error's own place first. Its notes lead further from the mistake.
            let pointed_at = [true, false].into_iter().map(|primary| refused(&messages, &put_in, primary));
            let refused = pointed_at.chain([without_drop(&messages, sites)]);
            let Some(refused) = refused.into_iter().find(|refused| !refused.is_empty()) else {
                bail!("the copy does not compile:\n{}", String::from_utf8_lossy(&checked.stderr));
            };
            known.extend(refused.iter().map(|id| sites[id].name.clone()));
            sites.retain(|id, _| !refused.contains(id));
        }
        std::fs::write(self.refused_file(), known.iter().map(|name| format!("{name}\n")).collect::<String>())?;
        if !sites.values().any(Site::may_be_in_scenarios) {
            return Ok(all - sites.len());
        }
        say("building the worker");
        let built = self.build_worker().output()?;
        ensure!(built.status.success(), "building the worker:\n{}", String::from_utf8_lossy(&built.stderr));
        Ok(all - sites.len())
    }

    fn build_worker(&self) -> Command {
        let mut build = self.cargo("build", "farfield-sweep-worker");
        build.args(["--profile", self.profile.name()]);
        build
    }

    /// The names of the mistakes that the compiler has refused in earlier builds.
    fn known_refused(&self) -> BTreeSet<String> {
        let text = std::fs::read_to_string(self.refused_file()).unwrap_or_default();
        text.lines().map(String::from).collect()
    }

    fn refused_file(&self) -> PathBuf {
        self.folder.with_file_name("refused.txt")
    }

    pub(crate) fn worker(&self) -> PathBuf {
        self.target.join(self.profile.name()).join("farfield-sweep-worker")
    }
}

/// Whether a target is the library of its package: that one's name has `_` for `-`.
fn is_library(package: &str, target: &str) -> bool {
    package.replace('-', "_") == target
}

/// The profiles by their names. A debug assertion that fails kills, too.
const PROFILES: &str = r#"
[profile.sweep]
inherits = "release"
debug = false
debug-assertions = true

# Its tests of objects wait more than they work.
[profile.sweep.package.farfield]
opt-level = 1

[profile.again]
inherits = "sweep"
opt-level = 0
"#;

/// The mistakes that compiler errors are about: those with a text that an error points into, or else the innermost
/// around it.
fn refused(messages: &str, put_in: &PutIn, primary: bool) -> BTreeSet<u32> {
    let mut refused = BTreeSet::new();
    for line in messages.lines() {
        let Ok(message) = serde_json::from_str::<serde_json::Value>(line) else { continue };
        let message = &message["message"];
        if message["level"] != "error" {
            continue;
        }
        for span in spans(message).into_iter().filter(|span| span["is_primary"].as_bool() == Some(primary)) {
            let Some(ranges) = span["file_name"].as_str().and_then(|file| put_in.get(file)) else { continue };
            let (Some(start), Some(end)) = (span["byte_start"].as_u64(), span["byte_end"].as_u64()) else { continue };
            let (start, end) = (start as usize, end as usize);
            // The innermost of those that it touches; the others may be right without it.
            let mut touched =
                ranges.iter().filter(|(_, range)| range.start < end && start < range.end).map(|(id, _)| *id);
            let touched: Vec<u32> = touched.next_back().into_iter().collect();
            if touched.is_empty() {
                refused.extend(around(ranges, start));
            } else {
                refused.extend(touched);
            }
        }
    }
    refused
}

/// The mistakes by which a variable is not dropped, of those that are borrowed for too long.
fn without_drop(messages: &str, sites: &BTreeMap<u32, Site>) -> BTreeSet<u32> {
    let messages = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let dropped: Vec<(String, String)> = messages
        .flat_map(|message| spans(&message["message"]).into_iter().filter_map(dropped_later).collect::<Vec<_>>())
        .collect();
    let is_one = |site: &Site| dropped.iter().any(|(file, drop)| site.file == *file && site.mistake.was == *drop);
    sites.iter().filter(|(_, site)| is_one(site)).map(|(id, _)| *id).collect()
}

/// The file and the statement that would have dropped a variable, if the compiler says that it is dropped at the end of
/// its scope.
fn dropped_later(span: &serde_json::Value) -> Option<(String, String)> {
    let (_, label) = span["label"].as_str()?.split_once("when `")?;
    let (variable, _) = label.split_once("` is dropped")?;
    Some((span["file_name"].as_str()?.to_string(), format!("drop({variable});")))
}

/// The innermost mistake around a place: its texts are before and behind it.
fn around(ranges: &[(u32, Range<usize>)], at: usize) -> Option<u32> {
    let before = ranges.iter().rev().filter(|(_, range)| range.end <= at);
    let has_end = |id: u32| ranges.iter().any(|(other, range)| *other == id && range.start >= at);
    before.map(|(id, _)| *id).find(|id| has_end(*id))
}

fn spans(message: &serde_json::Value) -> Vec<&serde_json::Value> {
    let own = message["spans"].as_array().into_iter().flatten();
    let children = message["children"].as_array().into_iter().flatten();
    own.chain(children.flat_map(|child| child["spans"].as_array().into_iter().flatten())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_feature_of_the_seeded_bugs_is_emptied() {
        for list in ["[\"a/mutants\"]", "[\n    \"a/mutants\",\n    \"b?/mutants\",\n]"] {
            let manifest = format!("[features]\nsim = [\"a/sim\"]\nmutants = {list}\n\n[dependencies]\n");
            assert_eq!(without_mutants(&manifest), "[features]\nsim = [\"a/sim\"]\nmutants = []\n\n[dependencies]\n");
        }
    }
    use crate::report::equivalents;

    #[test]
    fn equivalent_mistakes_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let names: BTreeSet<String> = sites(&root).unwrap().into_iter().map(|site| site.name).collect();
        let known = equivalents(&root).unwrap();
        let stale: Vec<&String> = known.keys().filter(|name| !names.contains(*name)).collect();
        assert!(stale.is_empty(), "no such mistakes: {stale:#?}");
    }

    #[test]
    fn a_copy_has_all_that_git_knows_links_too() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let scratch = tempfile::tempdir().unwrap();
        let tree = Tree::new(&root, scratch.path(), Profile::BuiltSoon, &BTreeMap::new());
        for _again in 0..2 {
            tree.write(&[]).unwrap();
        }
        for file in tracked(&root).unwrap() {
            let (known, copy) = (root.join(&file), tree.folder.join(&file));
            assert!(copy.exists(), "{file} is not in the copy, or leads nowhere");
            assert_eq!(known.is_symlink(), copy.is_symlink(), "{file}");
        }
    }
}
