use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Mutex;

use camino::{Utf8Path, Utf8PathBuf};

use crate::system::fake::{FakeJob, FakeMac};
use crate::system::{SystemError, add_list};
use crate::{Daemon, Installation, Observed, Programs, PropertyList, System, USER};
use rooflet_testing::TempDir;

/// Directory with a Mac's files and a build of rooflet.
struct Mac {
    directory: TempDir,
    fake: Option<FakeMac>,
}

impl Mac {
    /// Returns a Mac with a user who owns the files of the test.
    fn new() -> Self {
        let directory = TempDir::new();
        fs::write(directory.path().join("build"), "version 1").unwrap();
        let owner = nix::unistd::geteuid().as_raw();
        let mut fake = FakeMac::default();
        fake.users.insert("tester".to_owned(), owner);
        Self {
            directory,
            fake: Some(fake),
        }
    }

    fn path(&self, name: &str) -> Utf8PathBuf {
        self.directory.path().join("root").join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn installation(&self, daemon: Daemon, arguments: &[&str]) -> Installation {
        self.installation_of("tester", daemon, arguments)
    }

    fn installation_of(&self, user: &str, daemon: Daemon, arguments: &[&str]) -> Installation {
        let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
        let program = self.directory.path().join("build");
        Installation::new(daemon, user.to_owned(), arguments, program, None)
    }

    /// Passes the Mac to `work` as a system. Returns the commands that changed something.
    async fn with<T>(&mut self, work: impl AsyncFnOnce(&System) -> T) -> (T, Vec<String>) {
        let fake = Mutex::new(self.fake.take().unwrap());
        let system = System::new(&self.directory.path().join("root"), Programs::Fake(fake));
        let result = work(&system).await;
        let mut fake = system.into_fake();
        let changes = std::mem::take(&mut fake.changes);
        self.fake = Some(fake);
        (result, changes)
    }

    async fn install(
        &mut self,
        desired: &Installation,
    ) -> (Result<usize, Box<dyn std::error::Error>>, Vec<String>) {
        let install = async |system: &System| {
            let observed = system.observe(desired, "kubeconfig").await?;
            let steps = crate::install(desired, &observed)?;
            system.apply(&steps).await?;
            system.await_start(desired.daemon).await?;
            Ok(steps.len())
        };
        self.with(install).await
    }

    /// Restarts the Mac, which empties a directory. launchd loads the installed services.
    fn restart(&self) {
        let volatile = self.path("var/run");
        if volatile.exists() {
            fs::remove_dir_all(volatile).unwrap();
        }
    }

    async fn uninstall(&mut self, daemon: Daemon, purge: bool) -> Vec<String> {
        let uninstall = async |system: &System| {
            let observed = system.observe_removal(daemon).await.unwrap();
            let steps = crate::uninstall(daemon, purge, &observed);
            system.apply(&steps).await.unwrap();
        };
        self.with(uninstall).await.1
    }
}

#[tokio::test(start_paused = true)]
async fn second_installation_changes_nothing() {
    let mut mac = Mac::new();
    mac.write("usr/local/var/rooflet/agent/kubeconfig", "");
    let desired = mac.installation(Daemon::Agent, &["--listen=0.0.0.0:7500"]);
    let (outcome, commands) = mac.install(&desired).await;
    outcome.unwrap();
    assert_eq!(
        commands[commands.len() - 2..],
        [
            "launchctl enable system/dev.rooflet.agent",
            "launchctl bootstrap system /Library/LaunchDaemons/dev.rooflet.agent.plist"
        ]
    );
    let list = fs::read(mac.path("Library/LaunchDaemons/dev.rooflet.agent.plist")).unwrap();
    assert_eq!(PropertyList::parse(&list).unwrap(), desired.job());
    assert!(mac.path("usr/local/var/rooflet/models").is_dir());
    assert_eq!(
        fs::read_to_string(mac.path("usr/local/bin/rooflet")).unwrap(),
        "version 1"
    );

    mac.restart();
    let (outcome, commands) = mac.install(&desired).await;
    assert_eq!((outcome.unwrap(), commands), (0, Vec::new()));
}

/// macOS kills new processes of a binary that was overwritten in place.
#[tokio::test(start_paused = true)]
async fn upgrade_replaces_the_binary_by_a_rename_and_restarts_the_service() {
    use std::os::unix::fs::MetadataExt as _;

    let mut mac = Mac::new();
    let desired = mac.installation(Daemon::Server, &[]);
    mac.install(&desired).await.0.unwrap();
    let binary = mac.path("usr/local/bin/rooflet");
    let inode = |path: &Utf8Path| fs::metadata(path).unwrap().ino();
    // An open file keeps its inode from being used again.
    let running = fs::File::open(&binary).unwrap();
    let before = inode(&binary);
    fs::write(mac.directory.path().join("build"), "version 2").unwrap();
    // launchd needs a while to stop the service, and refuses to start it for a few seconds.
    let fake = mac.fake.as_mut().unwrap();
    (fake.slow_stops, fake.refused_starts) = (20, 5);
    let (outcome, commands) = mac.install(&desired).await;
    outcome.unwrap();
    assert_eq!(fs::read_to_string(&binary).unwrap(), "version 2");
    assert_ne!(inode(&binary), before);
    drop(running);
    let attempts = commands
        .iter()
        .filter(|command| command.contains("bootstrap"))
        .count();
    assert_eq!(
        (commands[0].as_str(), attempts),
        ("launchctl bootout system/dev.rooflet.server", 6)
    );
    assert!(!mac.path("usr/local/bin/rooflet.new").exists());
}

#[tokio::test(start_paused = true)]
async fn service_that_ends_is_reported_with_the_end_of_its_log() {
    let mut mac = Mac::new();
    mac.fake.as_mut().unwrap().next_job = FakeJob::Fails(69);
    mac.write(
        "usr/local/var/rooflet/server.log",
        "starting\nerror: --listen 0.0.0.0:7443: the port is in use\n\n",
    );
    let desired = mac.installation(Daemon::Server, &[]);
    let err = mac.install(&desired).await.0.unwrap_err().to_string();
    assert_eq!(
        err,
        "`rooflet server` does not keep running (spawn scheduled, last exit 69); the log `/usr/local/var/rooflet/server.log` \
         ends with: error: --listen 0.0.0.0:7443: the port is in use"
    );
}

#[tokio::test(start_paused = true)]
async fn service_that_does_not_stop_is_not_replaced_until_the_next_installation() {
    let mut mac = Mac::new();
    let before = mac.installation(Daemon::Server, &[]);
    mac.install(&before).await.0.unwrap();
    mac.fake.as_mut().unwrap().slow_stops = 1000;
    let changed = mac.installation(Daemon::Server, &["--let-sleep"]);
    let err = mac.install(&changed).await.0.unwrap_err().to_string();
    assert!(
        err.contains("launchctl bootout") && err.contains("still runs"),
        "{err}"
    );
    let list = mac.path("Library/LaunchDaemons/dev.rooflet.server.plist");
    let read = || PropertyList::parse(&fs::read(&list).unwrap()).unwrap();
    assert_eq!(read(), before.job());
    mac.fake.as_mut().unwrap().slow_stops = 1;
    let (outcome, commands) = mac.install(&changed).await;
    outcome.unwrap();
    assert_eq!(read(), changed.job());
    assert_eq!(
        commands,
        [
            "launchctl bootout system/dev.rooflet.server",
            "launchctl enable system/dev.rooflet.server",
            "launchctl bootstrap system /Library/LaunchDaemons/dev.rooflet.server.plist",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn changed_property_list_of_a_running_service_is_applied() {
    let mut mac = Mac::new();
    let desired = mac.installation(Daemon::Server, &[]);
    mac.install(&desired).await.0.unwrap();
    let list = mac.path("Library/LaunchDaemons/dev.rooflet.server.plist");
    let text = fs::read_to_string(&list).unwrap();
    for token in ["hf_1", "hf_2", "hf_3"] {
        mac.restart();
        let variables = format!(
            "<key>EnvironmentVariables</key><dict><key>HF_TOKEN</key><string>{token}</string></dict></dict>"
        );
        fs::write(
            &list,
            text.replace("</dict>\n</plist>", &format!("{variables}</plist>")),
        )
        .unwrap();
        let read = || PropertyList::parse(&fs::read(&list).unwrap()).unwrap();
        let edited = read();
        let again = mac
            .installation(Daemon::Server, &[])
            .with_environment_of(Some(&edited));
        let (outcome, commands) = mac.install(&again).await;
        outcome.unwrap();
        assert_eq!(commands.len(), 3, "{commands:?}");
        assert!(read().text().contains(token), "{}", read().text());
        assert_eq!(fs::metadata(&list).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(mac.install(&again).await.1, [""; 0]);
    }
    let copy = mac.path("var/db/dev.rooflet.server.loaded.plist");
    assert_eq!(fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    // Without the copy, nothing is known about the loaded list.
    fs::remove_file(&copy).unwrap();
    let again = mac.installation(Daemon::Server, &[]);
    mac.install(&again).await.0.unwrap();
    fs::remove_file(&copy).unwrap();
    assert_eq!(mac.install(&again).await.1.len(), 3);
    assert_eq!(mac.install(&again).await.1, [""; 0]);
    // An administrator has stopped the service.
    mac.fake.as_mut().unwrap().loaded.clear();
    mac.uninstall(Daemon::Server, false).await;
    assert!(!copy.exists());
}

#[tokio::test]
async fn list_of_one_service_does_not_depend_on_the_other() {
    let mut mac = Mac::new();
    mac.write(
        "Library/LaunchDaemons/dev.rooflet.agent.plist",
        "no property list",
    );
    let read = async |system: &System| Daemon::ALL.map(|daemon| system.installed_list(daemon));
    let [server, agent] = mac.with(read).await.0;
    assert_eq!(server.unwrap(), None);
    agent.unwrap_err();

    let mut observed = Observed::default();
    let mut deny = |planned| {
        let path = Daemon::Server.property_list();
        let denied = Err(SystemError::Private { path });
        add_list(&mut observed, planned, Daemon::Server, denied)
    };
    deny(Daemon::Server).unwrap_err();
    deny(Daemon::Agent).unwrap();
    assert!(observed.unreadable.contains(&Daemon::Server));
}

#[tokio::test(start_paused = true)]
async fn agent_that_has_not_joined_is_not_installed() {
    let mut mac = Mac::new();
    let desired = mac.installation(Daemon::Agent, &[]);
    let (outcome, commands) = mac.install(&desired).await;
    let err = outcome.unwrap_err().to_string();
    assert!(err.contains("rooflet join"), "{err}");
    assert!(commands.is_empty() && !mac.path("Library").exists());
}

#[tokio::test(start_paused = true)]
async fn new_user_is_created_and_deleted_with_the_last_service() {
    let mut mac = Mac::new();
    let fake = mac.fake.as_mut().unwrap();
    fake.users.insert("_other".to_owned(), 399);
    let server = mac.installation_of(USER, Daemon::Server, &[]);
    mac.install(&server).await.0.unwrap();
    let fake = mac.fake.as_ref().unwrap();
    assert_eq!(
        (fake.users.get(USER), fake.groups.get(USER)),
        (Some(&398), Some(&398))
    );

    // The removal keeps data, binary and user.
    let commands = mac.uninstall(Daemon::Server, false).await;
    assert_eq!(commands, ["launchctl bootout system/dev.rooflet.server"]);
    assert!(mac.path("usr/local/var/rooflet/server").is_dir() && mac.path("usr/local/bin/rooflet").exists());
    assert!(
        !mac.path("Library/LaunchDaemons/dev.rooflet.server.plist")
            .exists()
    );
    assert_eq!(mac.uninstall(Daemon::Server, false).await, Vec::<String>::new());

    let commands = mac.uninstall(Daemon::Server, true).await;
    assert_eq!(
        commands,
        [
            "dscl . -delete /Users/_rooflet",
            "dscl . -delete /Groups/_rooflet"
        ]
    );
    assert!(!mac.path("usr/local/var/rooflet").exists() && !mac.path("usr/local/bin/rooflet").exists());
    assert!(mac.path("usr/local/var").is_dir());
}

#[tokio::test(start_paused = true)]
async fn local_models_survive_a_purge() {
    let mut mac = Mac::new();
    mac.write("usr/local/var/rooflet/agent/kubeconfig", "");
    mac.write("usr/local/var/rooflet/models/guide/config.json", "{}");
    mac.install(&mac.installation(Daemon::Agent, &[]))
        .await
        .0
        .unwrap();
    mac.uninstall(Daemon::Agent, true).await;
    assert!(
        mac.path("usr/local/var/rooflet/models/guide/config.json")
            .exists()
    );
    assert!(!mac.path("usr/local/var/rooflet/agent").exists());
}

#[test]
fn data_elsewhere_is_named_as_kept() {
    let job = Daemon::Agent.job(USER, &["--state-dir=/Volumes/fast/agent".to_owned()]);
    let observed = Observed {
        installed: BTreeMap::from([(Daemon::Agent, job)]),
        ..Observed::default()
    };
    assert_eq!(
        crate::kept(Daemon::Agent, true, &observed),
        ["/Volumes/fast/agent is kept, because it is not below /usr/local/var/rooflet"]
    );
}
