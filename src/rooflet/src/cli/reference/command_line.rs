//! Page of the verbs, their flags and the exit codes.

use clap::{Arg, ArgAction, Command, CommandFactory as _, Id};

use super::markdown::{NOTICE, table, wrapped};
use crate::cli::{Cli, home};
use rooflet_base::error::ExitStatus;

const INTRO: &str = "\
# Command line

Results go to standard output; progress and logs go to standard error. If the reader of standard
output exits (`| head`), the verb ends without an error. Messages that cannot be written to standard
error are dropped. Long-running verbs stop in order on SIGTERM or Ctrl-C; a second signal ends them
immediately. [configuration.md](configuration.md) lists the environment variables.
";

const EXIT_CODES: [(u8, &str, &str); 9] = [
    (ExitStatus::Success as u8, "success, or stopped as requested", ""),
    (
        ExitStatus::Failure as u8,
        "failure at run time. `doctor`: a check failed",
        "read the message; a retry may help",
    ),
    (
        ExitStatus::Usage as u8,
        "invalid command line",
        "read the printed usage",
    ),
    (
        ExitStatus::DoesNotFit as u8,
        "`fit`: no fit, or no prediction. `plan`: no fleet (`--recommend`: no purchase) satisfies the demand",
        "use one of the suggestions",
    ),
    (
        ExitStatus::Flagged as u8,
        "`claim`: a claim has findings. `bench`: an answer was faster than the memory's bandwidth permits",
        "read the output",
    ),
    (
        ExitStatus::Untestable as u8,
        "`claim`: nothing in a claim can be checked",
        "state chip, model, format and figures",
    ),
    (
        ExitStatus::Unavailable as u8,
        "a port, lock, directory or node name is in use. `bench`: no server or model",
        "stop the other process or choose another name; start the server",
    ),
    (
        ExitStatus::Config as u8,
        "a configuration, manifest, claim, table or model directory is invalid",
        "correct the named file; a retry does not help",
    ),
    (
        130,
        "Ctrl-C ended a waiting verb (`logs -f`, `rollout status`, `drain`, …)",
        "",
    ),
];

pub(super) fn page() -> String {
    let mut root = Cli::command();
    root.build();
    let mut page = format!("{NOTICE}{INTRO}\n## Verbs\n\n");
    let verbs: Vec<&Command> = visible(&root).collect();
    let rows: Vec<_> = verbs
        .iter()
        .map(|verb| {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            [
                format!("[`{0}`](#rooflet-{0})", verb.get_name()),
                about.trim_end_matches('.').to_owned(),
            ]
        })
        .collect();
    page.push_str(&table(["verb", "purpose"], &rows));
    page.push_str("\nFlags of every verb:\n\n");
    let global = root.get_arguments().filter(|arg| arg.is_global_set());
    global.for_each(|arg| page.push_str(&flag(arg)));
    page.push_str("\n## Exit codes\n\n");
    let rows = EXIT_CODES.map(|(code, meaning, remedy)| [code.to_string(), meaning.into(), remedy.into()]);
    page.push_str(&table(["code", "meaning", "remedy"], &rows));
    let of_every_verb: Vec<_> = root
        .get_arguments()
        .filter(|arg| arg.is_global_set())
        .map(Arg::get_id)
        .collect();
    for verb in verbs {
        page.push_str(&section(verb, "##", &of_every_verb));
    }
    page
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command
        .get_subcommands()
        .filter(|verb| !verb.is_hide_set() && verb.get_name() != "help")
}

/// Returns the section of a verb. `of_every_verb` are the arguments that all verbs have.
fn section(verb: &Command, heading: &str, of_every_verb: &[&Id]) -> String {
    let mut verb = verb.clone();
    let usage = verb.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ");
    let name = usage
        .split([' ', '\n'])
        .take_while(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
        .collect::<Vec<_>>()
        .join(" ");
    let about = verb.get_long_about().or_else(|| verb.get_about());
    let about = sentence(&about.map(ToString::to_string).unwrap_or_default());
    let mut text = format!("\n{heading} `{name}`\n\n");
    for paragraph in about.split("\n\n") {
        text.push_str(&wrapped("", paragraph));
        text.push('\n');
    }
    text.push_str(&format!("```text\n{usage}\n```\n\n"));
    let own = verb.get_arguments().filter(|arg| {
        !of_every_verb.contains(&arg.get_id())
            && !arg.is_hide_set()
            && !["help", "version"].contains(&arg.get_id().as_str())
    });
    own.for_each(|arg| text.push_str(&flag(arg)));
    if let Some(after) = verb.get_after_long_help().or_else(|| verb.get_after_help()) {
        text.push_str(&format!("\n{after}\n"));
    }
    for sub in visible(&verb) {
        text.push_str(&section(sub, "###", of_every_verb));
    }
    text
}

/// Returns the list item of an argument: its form, meaning, values, default and variable.
fn flag(arg: &Arg) -> String {
    let help = arg.get_long_help().or_else(|| arg.get_help());
    let help = help.map(ToString::to_string).unwrap_or_default();
    let mut text = format!("`{}`: {}", form(arg), sentence(&help));
    let values = arg.get_possible_values();
    let values: Vec<_> = values
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if !values.is_empty() && takes_value(arg) {
        text.push_str(&format!(" Values: {}.", values.join(", ")));
    }
    let defaults: Vec<_> = arg
        .get_default_values()
        .iter()
        .map(|value| format!("`{}`", below_home(&value.to_string_lossy())))
        .collect();
    if !defaults.is_empty() && takes_value(arg) && !arg.is_hide_default_value_set() {
        text.push_str(&format!(" Default: {}.", defaults.join(", ")));
    }
    if let Some(variable) = arg.get_env() {
        text.push_str(&format!(" Variable: `{}`.", variable.to_string_lossy()));
    }
    wrapped("- ", &text)
}

/// Restores the full stop that clap removes from the end of a doc comment.
fn sentence(text: &str) -> String {
    match text.trim_end() {
        text if text.is_empty() || text.ends_with(['.', ':']) => text.to_owned(),
        text => format!("{text}."),
    }
}

/// Replaces the home directory of the user who generates the page.
fn below_home(path: &str) -> String {
    let home = home();
    match path.strip_prefix(home.as_str()) {
        Some(rest) if !home.as_str().is_empty() => format!("~{rest}"),
        _ => path.to_owned(),
    }
}

fn takes_value(arg: &Arg) -> bool {
    matches!(arg.get_action(), ArgAction::Set | ArgAction::Append)
}

/// Returns `-f, --file <FILE>`, or `<FILE>` for an argument without a name.
fn form(arg: &Arg) -> String {
    let short = arg.get_short().map(|short| format!("-{short}"));
    let long = arg.get_long().map(|long| format!("--{long}"));
    let mut parts: Vec<String> = short.into_iter().chain(long).collect();
    let is_named = !parts.is_empty();
    let values = arg.get_value_names().unwrap_or_default();
    let values: Vec<_> = values.iter().map(|name| format!("<{name}>")).collect();
    if takes_value(arg) {
        match parts.last_mut() {
            Some(last) => last.push_str(&format!(" {}", values.join(" "))),
            None => parts.push(values.join(" ")),
        }
    }
    let is_repeated = matches!(arg.get_action(), ArgAction::Append)
        || arg
            .get_num_args()
            .is_some_and(|count| count.max_values() > 1 && !is_named);
    format!("{}{}", parts.join(", "), if is_repeated { "..." } else { "" })
}
