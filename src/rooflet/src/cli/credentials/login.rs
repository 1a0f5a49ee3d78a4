//! `rooflet login`: stores a user's credentials for a remote API server.

use std::io::{self, IsTerminal as _, Write as _};

use anyhow::{Context, anyhow};
use camino::Utf8PathBuf;
use http::Uri;

use super::whoami::{self, Account};
use crate::cli::{Failure, ui};
use rooflet_base::clock::Clock;
use rooflet_base::error::ExitStatus;
use rooflet_client::{KubeconfigSource, server_of, with_token};
use rooflet_composition::data_dir;
use rooflet_pki::kubeconfig::{self, Credentials};
use rooflet_pki::{AuthorityHash, DiscoverError, certificate_pem, discover, presented_authority};

/// Arguments of `rooflet login`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// URL of the API server, such as https://10.0.0.5:7443.
    #[arg(value_name = "URL")]
    server: String,
    /// Hash of the server's certificate authority, with which this machine verifies the server: the
    /// digits between `rf1.` and the next dot in a token of `rooflet token create`. Without it, you
    /// are asked whether the hash that the server presents is right.
    #[arg(long, value_name = "sha256:HASH")]
    ca_hash: Option<AuthorityHash>,
    /// File that contains your token; `-` for standard input. Default: you are asked for it. An
    /// administrator creates tokens with `kubectl create token NAME`.
    #[arg(long, value_name = "FILE")]
    token_file: Option<Utf8PathBuf>,
    /// Path of the written kubeconfig. Default: ~/.rooflet/kubeconfig.
    #[arg(long, value_name = "FILE")]
    kubeconfig_out: Option<Utf8PathBuf>,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let path = args
        .kubeconfig_out
        .clone()
        .unwrap_or_else(|| crate::cli::default_data_dir().join("kubeconfig"));
    let authority = match args.ca_hash {
        Some(hash) => hash,
        None => confirmed(&args.server).await?,
    };
    let server = discover(&args.server, authority, &Clock::System)
        .await
        .map_err(explained)?;
    let url = server.url.to_string();
    let url = url.trim_end_matches('/');
    keep_other_server(&path, &server.url).await?;
    let token = token(&args)?;
    let client = with_token(
        server.url.clone(),
        &server.authority,
        token.clone(),
        &Clock::System,
    )?;
    let account = Account::of(&client)
        .await
        .with_context(|| format!("{url} does not accept the token"))?;
    if let Some(directory) = path.parent().filter(|parent| !parent.as_str().is_empty()) {
        data_dir::create(directory)
            .with_context(|| format!("creating the directory `{directory}`"))
            .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    }
    kubeconfig::write(
        path.as_std_path(),
        url,
        &certificate_pem(&server.authority),
        Credentials::Token(&token),
    )
    .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let until = match whoami::end_of_token(&token) {
        Some(end) => format!(" until {end}"),
        None => String::new(),
    };
    ui::output(&format!(
        "you are {} at {url}{until}; credentials: {path}\n\nfor kubectl:\n  export KUBECONFIG={path}\n",
        account.name
    ));
    Ok(())
}

fn explained(err: DiscoverError) -> Failure {
    let status = match err {
        DiscoverError::Url(_) => ExitStatus::Usage,
        DiscoverError::Connect { .. } | DiscoverError::Handshake { .. } => ExitStatus::Unavailable,
        DiscoverError::OtherAuthority { .. }
        | DiscoverError::NoAuthority { .. }
        | DiscoverError::Clock { .. }
        | DiscoverError::Tls(_) => ExitStatus::Failure,
    };
    Failure::new(status, err)
}

/// Asks whether the hash that the server presents is right.
async fn confirmed(server: &str) -> Result<AuthorityHash, Failure> {
    let presented = presented_authority(server, &Clock::System)
        .await
        .map_err(explained)?;
    if !io::stdin().is_terminal() {
        return Err(Failure::new(
            ExitStatus::Usage,
            anyhow!(
                "--ca-hash is missing; pass --ca-hash {presented} if a token of `rooflet token create` on {server} \
                 contains the same digits"
            ),
        ));
    }
    ui::progress(&format!(
        "the certificate authority of {server} is not known:\n  {presented}\nA token of `rooflet token create` on the \
         server contains these digits after `rf1.`. Are they the same? [y/N]"
    ));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).context("reading the answer")?;
    match answer.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(presented),
        _ => Err(Failure::new(ExitStatus::Failure, anyhow!("not logged in"))),
    }
}

/// Fails if the file contains credentials for another server.
async fn keep_other_server(path: &Utf8PathBuf, server: &Uri) -> Result<(), Failure> {
    if !path.exists() {
        return Ok(());
    }
    let (known, _) = server_of(&KubeconfigSource::File(path.clone()))
        .await
        .map_err(|err| Failure::new(ExitStatus::Config, err))?;
    match known.authority() == server.authority() {
        true => Ok(()),
        false => Err(Failure::new(
            ExitStatus::Config,
            anyhow!("{path} contains the credentials for {known}; pass another file with --kubeconfig-out"),
        )),
    }
}

/// Reads the token from the file, or from the terminal without showing it.
fn token(args: &Args) -> Result<String, Failure> {
    let text = match args.token_file.as_ref().map(|file| file.as_str()) {
        Some("-") => io::read_to_string(io::stdin()).context("reading the token from standard input"),
        Some(file) => {
            std::fs::read_to_string(file).with_context(|| format!("reading the token from `{file}`"))
        }
        None if io::stdin().is_terminal() => {
            drop(io::stderr().flush());
            rpassword::prompt_password("token: ").context("reading the token from the terminal")
        }
        None => {
            return Err(Failure::new(
                ExitStatus::Usage,
                anyhow!("--token-file is missing: standard input is not a terminal"),
            ));
        }
    };
    let text = text.map_err(|err| Failure::new(ExitStatus::Config, err))?;
    let token = text.trim();
    match token.is_empty() || token.contains(char::is_whitespace) {
        true => Err(Failure::new(
            ExitStatus::Usage,
            anyhow!("the token is empty or contains spaces"),
        )),
        false => Ok(token.to_owned()),
    }
}
