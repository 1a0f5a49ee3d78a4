//! Arguments of a service that `install` passes on.

use std::any::TypeId;
use std::marker::PhantomData;

use camino::Utf8PathBuf;
use clap::parser::ValueSource;
use clap::{ArgMatches, Command};

/// Arguments `A` of a service as text, for the property list. They have been parsed like those of the
/// service. Values from the environment are not included, because the service has another environment.
#[derive(Debug)]
pub(in crate::cli) struct Passed<A> {
    /// Each as `--NAME=VALUE` or `--NAME`. Paths are absolute, because the service starts in `/`.
    pub(super) arguments: Vec<String>,
    of: PhantomData<fn() -> A>,
}

impl<A> Clone for Passed<A> {
    fn clone(&self) -> Self {
        Self {
            arguments: self.arguments.clone(),
            of: PhantomData,
        }
    }
}

impl<A: clap::Args> clap::Args for Passed<A> {
    fn augment_args(command: Command) -> Command {
        let own: Vec<_> = of::<A>()
            .get_arguments()
            .map(|arg| arg.get_id().clone())
            .collect();
        // The help of the service lists them.
        A::augment_args(command).mut_args(|arg| match own.contains(arg.get_id()) {
            true => arg.hide(true).env(None::<&'static str>),
            false => arg,
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<A: clap::Args> clap::FromArgMatches for Passed<A> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut arguments = Vec::new();
        for arg in of::<A>().get_arguments().filter(|arg| !arg.is_hide_set()) {
            let id = arg.get_id().as_str();
            let Some(name) = arg.get_long() else { continue };
            if matches.value_source(id) != Some(ValueSource::CommandLine) {
                continue;
            }
            if !arg.get_action().takes_values() {
                arguments.push(format!("--{name}"));
                continue;
            }
            let is_path = arg.get_value_parser().type_id() == TypeId::of::<Utf8PathBuf>();
            for value in matches.get_raw(id).into_iter().flatten() {
                let value = value.to_string_lossy();
                let value = match is_path {
                    true => absolute(&value),
                    false => value.into_owned(),
                };
                arguments.push(format!("--{name}={value}"));
            }
        }
        Ok(Self {
            arguments,
            of: PhantomData,
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

/// Returns a command with the arguments of a service.
fn of<A: clap::Args>() -> Command {
    A::augment_args(Command::new("service"))
}

/// Returns the absolute form of a path. A path without one is kept: the service then reports it.
fn absolute(path: &str) -> String {
    let absolute = std::path::absolute(path).ok();
    let absolute = absolute.and_then(|path| Utf8PathBuf::from_path_buf(path).ok());
    absolute.map_or_else(|| path.to_owned(), Utf8PathBuf::into_string)
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::cli::{agent, server};

    fn passed<A: clap::Args>(arguments: &[&str]) -> Result<Vec<String>, clap::Error> {
        let command = Passed::<A>::augment_args(Command::new("install").no_binary_name(true));
        let matches = command.try_get_matches_from(arguments)?;
        Ok(Passed::<A>::from_arg_matches(&matches)?.arguments)
    }

    #[test]
    fn arguments_keep_their_values_and_paths_become_absolute() {
        let given = [
            "--listen",
            "0.0.0.0:7500",
            "--state-dir=state",
            "--let-sleep",
            "--quiet-hours=22:00-06:00",
        ];
        let directory = std::env::current_dir().unwrap();
        assert_eq!(
            passed::<agent::Args>(&given).unwrap(),
            [
                &format!("--state-dir={}/state", directory.display()),
                "--listen=0.0.0.0:7500",
                "--quiet-hours=22:00-06:00",
                "--let-sleep",
            ]
        );
        let lists = ["--tls-san=a.example,b.example", "--roles", "apiserver,controller"];
        assert_eq!(
            passed::<server::Args>(&lists).unwrap(),
            [
                "--tls-san=a.example",
                "--tls-san=b.example",
                "--roles=apiserver",
                "--roles=controller"
            ]
        );
        assert!(passed::<server::Args>(&[]).unwrap().is_empty());
    }

    #[test]
    fn invalid_values_are_rejected_like_those_of_the_service() {
        let err = passed::<agent::Args>(&["--grace-seconds=soon"]).unwrap_err();
        assert!(err.to_string().contains("--grace-seconds"), "{err}");
        assert!(passed::<server::Args>(&["--no-such-flag"]).is_err());
    }
}
