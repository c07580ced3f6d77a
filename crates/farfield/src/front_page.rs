//! The front page describes every item that the crate re-exports.

use std::path::Path;

/// The names that a file of Rust re-exports.
fn exported(text: &str) -> Vec<String> {
    let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
    let (code, mut names) = (code.join(" "), Vec::new());
    for path in code.split("pub use ").skip(1).filter_map(|rest| rest.split(';').next()) {
        let items = match path.split_once('{') {
            Some((_, items)) => items.trim_end().trim_end_matches('}'),
            None => path.rsplit("::").next().unwrap_or(path),
        };
        let named = items.split(',').filter_map(|item| item.rsplit(" as ").next()).map(str::trim);
        names.extend(named.filter(|name| !name.is_empty() && *name != "*").map(str::to_string));
    }
    names
}

#[test]
fn every_re_exported_item_is_on_the_front_page() {
    let text = include_str!("lib.rs");
    let page: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("//! ")).collect();
    let page = page.join("\n");
    let (_, items) = page.split_once("# Items").expect("the page has a table of items");
    let (items, _) = items.split_once("\n# ").expect("another section follows");
    // Everything of the core is re-exported, too. A package of this crate alone does not contain it.
    let core = Path::new(env!("CARGO_MANIFEST_DIR")).join("../core/src/lib.rs");
    let core = std::fs::read_to_string(core).unwrap_or_default();
    let names: Vec<String> = [text, core.as_str()].into_iter().flat_map(exported).collect();
    assert!(
        ["RpcClient", "LockTable", "swarm"].iter().all(|name| names.iter().any(|found| found == name)),
        "{names:?}"
    );
    let is_missing = |name: &&String| !items.contains(&format!("`{name}`"));
    let missing: Vec<&String> = names.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "no row of the front page names {missing:?}");
}
