//! For the shell and `man`: completions of the command line, and a page for each command.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

use crate::parts;

const COMPLETIONS_HELP: &str = "\
Examples:
  farfield completions bash > ~/.local/share/bash-completion/completions/farfield
  farfield completions zsh > ~/.zfunc/_farfield             # a folder of $fpath
  farfield completions fish > ~/.config/fish/completions/farfield.fish";

/// What `farfield completions` takes.
#[derive(clap::Args)]
#[command(after_help = COMPLETIONS_HELP)]
pub(crate) struct CompletionsArgs {
    /// The shell that is to read the script
    shell: Shell,
}

/// What `farfield man` takes.
#[derive(clap::Args)]
#[command(after_help = "Example:\n  farfield man --out ~/.local/share/man/man1")]
pub(crate) struct ManArgs {
    /// The directory for the pages; it is created if it does not exist
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

pub(crate) fn completions_main(args: &CompletionsArgs, command: Command) -> Result<ExitCode> {
    io::stdout().write_all(&completions(args.shell, command))?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man_main(args: &ManArgs, command: Command) -> Result<ExitCode> {
    pages(&args.out, command)?;
    Ok(ExitCode::SUCCESS)
}

/// The script for a shell.
fn completions(shell: Shell, command: Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown(&command), parts::program(), &mut script);
    script
}

/// Writes a page for the command, and for each one below it.
fn pages(directory: &Path, command: Command) -> Result<()> {
    std::fs::create_dir_all(directory).with_context(|| format!("creating {}", directory.display()))?;
    clap_mangen::generate_to(command, directory).with_context(|| format!("writing to {}", directory.display()))
}

/// The command without the subcommands that are hidden from its users: a script would offer them.
fn shown(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set()).map(shown);
    let shown = Command::new(command.get_name().to_owned()).args(command.get_arguments().cloned());
    let about = command.get_about().cloned().unwrap_or_default();
    let version = command.get_version().unwrap_or_default().to_owned();
    shown.about(about).version(version).propagate_version(true).subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use std::process;

    use clap::{CommandFactory, ValueEnum};

    use super::*;

    /// The command and all below it that are not hidden, by the names of their pages.
    fn names(command: &Command, above: &str, names: &mut Vec<String>) {
        let name = format!("{above}{}", command.get_name());
        for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
            self::names(below, &format!("{name}-"), names);
        }
        names.push(name);
    }

    #[test]
    fn every_shell_completes_every_command() {
        let command = crate::Cli::command();
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(*shell, command.clone())).unwrap();
            let words: Vec<&str> = script.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_').collect();
            for above in [&command, command.find_subcommand("bench").unwrap()] {
                for below in above.get_subcommands().filter(|below| !below.is_hide_set()) {
                    assert!(words.contains(&below.get_name()), "{shell} does not know {}", below.get_name());
                }
            }
            assert!(words.iter().any(|word| word.trim_matches('-') == "repetitions"), "{shell} knows no options");
            for hidden in command.get_subcommands().filter(|below| below.is_hide_set()) {
                assert!(!words.contains(&hidden.get_name()), "{shell} offers {}", hidden.get_name());
            }
        }
    }

    #[test]
    fn bash_reads_its_script() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("farfield");
        std::fs::write(&file, completions(Shell::Bash, crate::Cli::command())).unwrap();
        // What `farfield b` completes to.
        let line = ". \"$0\"; COMP_WORDS=(farfield b) COMP_CWORD=1; complete -p | grep -o '[^ ]*farfield[^ ]*' >/dev/null; \
                    function=$(complete -p | sed 's/.*-F \\([^ ]*\\).*/\\1/'); $function farfield b farfield; \
                    echo \"${COMPREPLY[@]}\"";
        let output = process::Command::new("bash").args(["-c", line]).arg(&file).output().unwrap();
        let (said, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert_eq!((said.trim(), errors.trim()), ("bench", ""));
    }

    #[test]
    fn every_command_has_a_page() {
        let directory = tempfile::tempdir().unwrap();
        let folder = directory.path().join("share/man/man1");
        pages(&folder, crate::Cli::command()).unwrap();
        let mut expected = Vec::new();
        names(&crate::Cli::command(), "", &mut expected);
        let mut written: Vec<String> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|file| file.unwrap().file_name().into_string().unwrap().strip_suffix(".1").unwrap().to_owned())
            .collect();
        expected.sort();
        written.sort();
        assert_eq!(written, expected);
        assert!(written.contains(&"farfield-bench-kv".to_string()), "{written:?}");
        for name in written {
            let page = std::fs::read_to_string(folder.join(format!("{name}.1"))).unwrap();
            for section in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION"] {
                assert!(page.contains(section), "{name} has no {section}");
            }
        }
    }

    #[test]
    fn a_directory_that_cannot_be_made_is_named() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let error = pages(&file.path().join("man1"), crate::Cli::command()).unwrap_err();
        assert!(format!("{error:#}").contains(file.path().to_str().unwrap()), "{error:#}");
    }
}
