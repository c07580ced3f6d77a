//! What must not compile: the hazards that the types exclude. Each program's `.stderr` beside it says why; read it
//! when it changes, since a program may fail for another reason than it should.
//!
//! The programs are compiled against the library as this test program was, which takes seconds. (`trybuild` builds the
//! library and all that it depends on once more.) `FARFIELD_UPDATE=1` writes the `.stderr` files anew.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The library that this program is linked with: the newest one that is no newer than the program.
fn library(folder: &Path, program: &Path) -> PathBuf {
    let written = |path: &Path| path.metadata().and_then(|data| data.modified()).expect("a file's time");
    let files = folder.read_dir().expect("the folder of this program").map(|entry| entry.expect("an entry").path());
    let is_library = |path: &PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.starts_with("libfarfield_fabric-") && name.ends_with(".rlib") && written(path) <= written(program)
    };
    files.filter(is_library).max_by_key(|path| written(path)).expect("the library is beside this program")
}

/// Compiles a program in full: the assertions on sizes are evaluated only when code is generated.
fn compile(program: &Path, to: &Path) -> Output {
    let this = std::env::current_exe().expect("this program");
    let folder = this.parent().expect("its folder");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or("rustc".into()));
    rustc.args(["--edition=2024", "--error-format=short", "--color=never"]).arg(program).arg("-o").arg(to);
    rustc.arg("-L").arg(format!("dependency={}", folder.display()));
    rustc.arg("--extern").arg(format!("farfield_fabric={}", library(folder, &this).display()));
    rustc.output().expect("rustc runs")
}

/// The errors, without the places in files other than the program.
fn errors(said: &str, program: &Path) -> String {
    let program = program.to_string_lossy();
    let mut errors = String::new();
    for line in said.lines() {
        let in_program = line.strip_prefix(&*program).map(|rest| format!("program{rest}"));
        match (in_program, line.find("error[")) {
            (Some(line), _) => errors += &line,
            (None, Some(at)) => errors += &line[at..],
            (None, None) => continue, // how many errors there were, and what can be read about them
        }
        errors += "\n";
    }
    errors
}

#[test]
fn hazards_do_not_compile() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("hazard");
    let mut wrong = 0;
    for entry in cases.read_dir().expect("the programs") {
        let program = entry.expect("an entry").path();
        if !program.to_string_lossy().ends_with("_fails.rs") {
            continue;
        }
        let output = compile(&program, &made);
        let (said, pinned) = (String::from_utf8_lossy(&output.stderr), program.with_extension("stderr"));
        assert!(!output.status.success(), "{} compiles", program.display());
        let found = errors(&said, &program);
        if std::env::var_os("FARFIELD_UPDATE").is_some() {
            std::fs::write(&pinned, &found).expect("the pinned errors are written");
        }
        assert_eq!(found, std::fs::read_to_string(&pinned).unwrap_or_default(), "{}: {said}", program.display());
        wrong += 1;
    }
    assert_eq!(wrong, 11, "a program for each hazard");
}

/// The right way to do it compiles and runs.
#[test]
fn correct_code_compiles() {
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compile_fail");
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join("right");
    let output = compile(&cases.join("right.rs"), &made);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(Command::new(&made).status().expect("it runs").success());
}
