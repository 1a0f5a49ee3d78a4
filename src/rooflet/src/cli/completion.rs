//! `rooflet completion`

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::{Cli, Failure, ui};

/// Shells for which clap has a generator and that macOS or Linux distributions ship.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ShellName {
    Bash,
    Zsh,
    Fish,
}

/// Arguments of `rooflet completion`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Shell whose script is printed.
    #[arg(value_enum)]
    shell: ShellName,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    ui::output(&script(args.shell));
    Ok(())
}

fn script(shell: ShellName) -> String {
    let shell = match shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut text = Vec::new();
    generate(shell, &mut Cli::command(), "rooflet", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_complete_verbs_and_options() {
        for (shell, marker) in [
            (ShellName::Bash, "complete -F _rooflet"),
            (ShellName::Zsh, "#compdef rooflet"),
            (ShellName::Fish, "complete -c rooflet"),
        ] {
            let text = script(shell);
            for word in [marker, "drain", "kubeconfig"] {
                assert!(text.contains(word), "{shell:?}: {word}");
            }
        }
    }
}
