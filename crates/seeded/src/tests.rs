use super::*;

const PLAIN: &str = "\
fn f() {
    fence(); // a comment
    put();
    fence(); // a comment
    if a {
        b();
    }
}
";

fn seeded(table: &str) -> Result<String, Vec<String>> {
    apply(PLAIN, &read_table("mutants/vars.diff", table)?)
}

#[test]
fn lines_keep_their_numbers() {
    let table = "
# Both are about the plain file.
@@ NO_FENCE in f.rs
 fn f() {
-    fence(); // a comment
+    if !ON { fence(); }

@@ EARLY in f.rs
     fence(); // a comment
     put();
+    if ON {
+        b(\"ON\", CONST_ON, ONE);
+    }

@@ NOT_AT_ALL in f.rs
-    if a {
-        b();
-    }
+    if !ON {
+        if a { b(); } }
";
    let copy = seeded(table).unwrap();
    let switch = |name: &str| format!("crate::mutants::vars::{name}.is_on()");
    let (fence, early, never) = (switch("NO_FENCE"), switch("EARLY"), switch("NOT_AT_ALL"));
    let lines: Vec<&str> = copy.lines().collect();
    assert_eq!(lines[1].trim(), format!("if !{fence} {{ fence(); }}"));
    assert_eq!(lines[3], format!("if {early} {{ b(\"{early}\", CONST_ON, ONE); }}     fence(); // a comment"));
    assert_eq!(lines[4].trim(), format!("if !{never} {{ if a {{ b(); }} }}"));
    assert_eq!(lines[5..8], ["", "", "}"]);
    assert_eq!(seeded("").unwrap().trim_end(), PLAIN.trim_end());
}

#[test]
fn edits_that_do_not_fit_are_errors() {
    let missing = "@@ X in f.rs\n-    get();\n+    put();\n";
    let twice = "@@ X in f.rs\n-    fence(); // a comment\n+    put();\n";
    let both = "@@ X in f.rs\n-    put();\n+    get();\n\n@@ Y in f.rs\n-    put();\n";
    let empty = "@@ X in f.rs\n+    put();\n";
    for (table, message) in [
        (missing, "src/mutants/vars.diff:1: X: its lines are 0 times in src/f.rs, not once"),
        (twice, "src/mutants/vars.diff:1: X: its lines are 2 times in src/f.rs, not once"),
        (both, "src/mutants/vars.diff:5: Y: another hunk changes the line `put();`, too"),
        (empty, "src/mutants/vars.diff:1: X: its lines are 9 times"),
        ("@@ X\n", "src/mutants/vars.diff:1: a hunk begins with"),
        ("@@ X in f.rs\n put();\nput();\n", "src/mutants/vars.diff:3: not a line of a hunk"),
        ("-    put();\n", "src/mutants/vars.diff:1: not a line of a hunk"),
        ("@@ X in f.rs\n+    put(); // a comment\n", "src/mutants/vars.diff:2: a line that is added has no comment"),
    ] {
        let errors = seeded(table).unwrap_err();
        assert!(errors.len() == 1 && errors[0].starts_with(message), "{errors:?} for {table}");
    }
}

#[test]
fn marked_modules_are_copied() {
    let folder = tempfile::tempdir().unwrap();
    let (src, out) = (folder.path().join("src"), folder.path().join("out"));
    let lib = format!("mod a;\n{MARK}\npub mod f;\n{MARK}\nmod g;\n");
    let table = "@@ X in f/inner.rs\n-    put();\n+    get();\n";
    for (file, text) in [("lib.rs", &*lib), ("a.rs", ""), ("f.rs", "mod inner;\n"), ("f/inner.rs", PLAIN), ("g.rs", "")]
    {
        write(&src.join(file), text).unwrap();
    }
    write(&src.join("mutants.diff"), table).unwrap();
    seed(&src, &out).unwrap();
    let copied = |file| fs::read_to_string(out.join(file)).unwrap();
    assert_eq!(copied("seeded.rs"), "pub mod f;\nmod g;");
    assert!(copied("f/inner.rs").contains("get();") && out.join("g.rs").exists() && !out.join("a.rs").exists());

    write(&src.join("mutants.diff"), "@@ X in a.rs\n mod inner;\n").unwrap();
    let errors = seed(&src, &out).unwrap_err();
    assert!(errors[0].starts_with("src/mutants.diff:1: X: `a.rs` is in no module"), "{errors:?}");
}
