use super::*;

const PROGRAM: &str = "/Users/anna/rooflet/target/release/rooflet";

fn installation(daemon: Daemon, arguments: &[&str]) -> Installation {
    let arguments = arguments.iter().map(|text| (*text).to_owned()).collect();
    Installation::new(daemon, USER.to_owned(), arguments, PROGRAM.into(), None)
}

fn joined() -> Observed {
    Observed {
        has_joined: Some(true),
        outdated: BTreeSet::from(["/usr/local/bin/rooflet".into()]),
        ..Observed::default()
    }
}

/// State after the steps of an installation.
fn installed(desired: &Installation) -> Observed {
    let paths = desired.directories().into_iter();
    let paths = paths.map(|(path, mode)| (path.to_owned(), mode));
    let files = [desired.daemon.property_list(), desired.daemon.log()].map(|path| (path, 0o644));
    Observed {
        accounts: Accounts {
            users: BTreeMap::from([(USER.to_owned(), 399)]),
            groups: BTreeMap::from([(USER.to_owned(), 399)]),
        },
        installed: BTreeMap::from([(desired.daemon, desired.job())]),
        loaded: BTreeSet::from([desired.daemon]),
        modes: paths.chain(files).collect(),
        has_joined: Some(true),
        ..Observed::default()
    }
}

fn shown(steps: &[Step]) -> Vec<String> {
    let first_line = |step: &Step| step.to_string().lines().next().unwrap_or_default().to_owned();
    steps.iter().map(first_line).collect()
}

#[test]
fn new_mac_gets_user_directories_binary_and_job_in_this_order() {
    let steps = install(&installation(Daemon::Agent, &[]), &joined()).unwrap();
    let shown = shown(&steps);
    assert!(
        shown[0].starts_with("run dscl . -create /Groups/_rooflet"),
        "{shown:?}"
    );
    let expected = [
        "create /usr/local/bin (mode 755)",
        "create /usr/local/var (mode 755)",
        "create /usr/local/var/rooflet (mode 755)",
        "create /usr/local/var/rooflet/models (mode 755)",
        "create /usr/local/var/rooflet/agent (mode 700)",
        "make _rooflet the owner of /usr/local/var/rooflet",
        "make _rooflet the owner of /usr/local/var/rooflet/agent and its files",
        "copy /Users/anna/rooflet/target/release/rooflet to /usr/local/bin/rooflet.new",
        "rename /usr/local/bin/rooflet.new to /usr/local/bin/rooflet",
        "write /Library/LaunchDaemons/dev.rooflet.agent.plist (mode 644):",
        "run launchctl enable system/dev.rooflet.agent",
    ];
    assert_eq!(shown[10..], expected);
}

#[test]
fn installed_service_needs_no_steps() {
    for daemon in Daemon::ALL {
        let desired = installation(daemon, &[]);
        assert_eq!(install(&desired, &installed(&desired)).unwrap(), []);
    }
}

#[test]
fn kernels_are_replaced_before_the_binary() {
    let desired = Installation::new(
        Daemon::Server,
        USER.to_owned(),
        Vec::new(),
        PROGRAM.into(),
        Some("/build/mlx.metallib".into()),
    );
    let targets: Vec<_> = desired.files.iter().map(|(_, to)| to.as_str()).collect();
    assert_eq!(targets, ["/usr/local/bin/mlx.metallib", "/usr/local/bin/rooflet"]);
}

#[test]
fn services_stop_before_a_new_binary_and_the_control_plane_starts_first() {
    let desired = installation(Daemon::Agent, &[]);
    let mut observed = installed(&desired);
    observed.loaded.insert(Daemon::Server);
    observed.outdated.insert("/usr/local/bin/rooflet".into());
    assert_eq!(
        install(&desired, &observed).unwrap()[1..],
        [
            Step::Unload(Daemon::Agent),
            Step::Unload(Daemon::Server),
            Step::Rename {
                to: "/usr/local/bin/rooflet".into()
            },
            Step::Load(Daemon::Server),
            Step::Load(Daemon::Agent),
        ]
    );
}

/// An ordinary user runs `--dry-run`, and the other service has environment variables.
#[test]
fn private_list_of_another_service_does_not_prevent_a_plan() {
    let desired = installation(Daemon::Agent, &[]);
    let mut observed = installed(&desired);
    observed.unreadable.insert(Daemon::Server);
    let start = [Step::Load(Daemon::Server)];
    assert_eq!(install(&desired, &observed).unwrap(), start);
    observed.modes.insert("/usr/local/bin/rooflet".into(), 0o755);
    let purged = shown(&uninstall(Daemon::Agent, true, &observed));
    assert!(
        !purged.contains(&"delete /usr/local/bin/rooflet".to_owned()),
        "{purged:?}"
    );
}

/// Mac with both services, of which each runs with some binary and some property list.
#[derive(Clone)]
struct Machine {
    binary: &'static str,
    lists: BTreeMap<Daemon, PropertyList>,
    running: BTreeMap<Daemon, (&'static str, PropertyList)>,
}

impl Machine {
    fn observe(&self, desired: &Installation) -> Observed {
        let outdated = (self.binary != "new").then(|| "/usr/local/bin/rooflet".into());
        Observed {
            installed: self.lists.clone(),
            loaded: self.running.keys().copied().collect(),
            outdated: outdated.into_iter().collect(),
            ..installed(desired)
        }
    }

    fn apply(&mut self, step: &Step) {
        match step {
            Step::Rename { .. } => self.binary = "new",
            Step::Write { daemon, job } => drop(self.lists.insert(*daemon, job.as_ref().clone())),
            Step::Unload(daemon) => drop(self.running.remove(daemon)),
            Step::Load(daemon) => {
                let started = (self.binary, self.lists[daemon].clone());
                self.running.insert(*daemon, started);
            }
            Step::Directory { .. }
            | Step::Own { .. }
            | Step::Copy { .. }
            | Step::Delete { .. }
            | Step::DeleteIfEmpty { .. }
            | Step::Run(_) => {}
        }
    }
}

#[test]
fn interrupted_installation_is_completed_by_the_next_one() {
    let lists = Daemon::ALL.map(|daemon| (daemon, installation(daemon, &[]).job()));
    let lists = BTreeMap::from(lists);
    let running = |lists: &BTreeMap<Daemon, PropertyList>, binary| {
        let lists = lists.clone().into_iter();
        lists.map(|(daemon, list)| (daemon, (binary, list))).collect()
    };
    let binaries = |daemon| ["old", "new"].map(|binary| (daemon, binary));
    for (daemon, binary) in Daemon::ALL.into_iter().flat_map(binaries) {
        let before = Machine {
            binary,
            running: running(&lists, binary),
            lists: lists.clone(),
        };
        let desired = installation(daemon, &["--listen=0.0.0.0:7500"]);
        let mut expected = lists.clone();
        expected.insert(daemon, desired.job());
        let expected = running(&expected, "new");
        let first = install(&desired, &before.observe(&desired)).unwrap();
        for done in 0..=first.len() {
            let mut machine = before.clone();
            first[..done].iter().for_each(|step| machine.apply(step));
            let second = install(&desired, &machine.observe(&desired)).unwrap();
            second.iter().for_each(|step| machine.apply(step));
            assert_eq!(machine.running, expected, "after {done} steps of {first:?}");
        }
    }
}

#[test]
fn changed_property_list_restarts_its_service() {
    let desired = installation(Daemon::Agent, &[]);
    let mut observed = installed(&desired);
    observed.loaded.insert(Daemon::Server);
    observed.is_stale = true;
    assert_eq!(
        install(&desired, &observed).unwrap(),
        [Step::Unload(Daemon::Agent), Step::Load(Daemon::Agent)]
    );
}

#[test]
fn environment_variables_are_kept_in_a_private_file_and_not_shown() {
    let job = PropertyList {
        environment_variables: Some(BTreeMap::from([("HF_TOKEN".to_owned(), "hf_1".to_owned())])),
        ..installation(Daemon::Agent, &[]).job()
    };
    let desired = installation(Daemon::Agent, &["--no-probe"]).with_environment_of(Some(&job));
    let mut observed = installed(&desired);
    observed.modes.insert(Daemon::Agent.property_list(), 0o600);
    assert_eq!(install(&desired, &observed).unwrap(), []);
    // An administrator has added the variables.
    observed.modes.insert(Daemon::Agent.property_list(), 0o644);
    let steps = install(&desired, &observed).unwrap();
    let Step::Write { job, .. } = &steps[1] else {
        panic!("{steps:?}");
    };
    assert_eq!(job.as_ref(), &desired.job());
    let shown = steps[1].to_string();
    assert!(
        shown.contains("(mode 600)") && shown.contains("HF_TOKEN"),
        "{shown}"
    );
    assert!(!shown.contains("hf_1"), "{shown}");
}

#[test]
fn changed_arguments_restart_the_service_only() {
    let mut observed = installed(&installation(Daemon::Agent, &[]));
    observed.loaded.insert(Daemon::Server);
    let desired = installation(Daemon::Agent, &["--listen=0.0.0.0:7500"]);
    let steps = install(&desired, &observed).unwrap();
    let (first, last) = (&steps[0], &steps[2..]);
    assert_eq!(
        (first, last),
        (&Step::Unload(Daemon::Agent), &[Step::Load(Daemon::Agent)][..])
    );
    let text = steps[1].to_string();
    assert!(text.contains("<string>--listen=0.0.0.0:7500</string>"), "{text}");
}

#[test]
fn credentials_of_a_later_join_get_their_owner() {
    let desired = installation(Daemon::Agent, &[]);
    let mut observed = installed(&desired);
    observed.foreign.insert("/usr/local/var/rooflet/agent".into());
    assert_eq!(
        shown(&install(&desired, &observed).unwrap()),
        ["make _rooflet the owner of /usr/local/var/rooflet/agent and its files"]
    );
}

/// `sudo rooflet join` creates missing parents of the state directory for root only.
#[test]
fn directories_that_others_cannot_read_get_their_mode() {
    let desired = installation(Daemon::Agent, &[]);
    let mut observed = installed(&desired);
    observed.modes.insert("/usr/local/var".into(), 0o700);
    assert_eq!(
        shown(&install(&desired, &observed).unwrap()),
        ["create /usr/local/var (mode 755)"]
    );
}

#[test]
fn directories_elsewhere_keep_their_owner() {
    let desired = installation(
        Daemon::Agent,
        &["--state-dir=/Volumes/fast/agent", "--model-dir=/models"],
    );
    let is_chown_elsewhere =
        |step: &Step| matches!(step, Step::Own { path, .. } if below_data(path).is_none());
    let mut observed = joined();
    let steps = install(&desired, &observed).unwrap();
    // The installation creates the state directory.
    assert!(steps.iter().any(is_chown_elsewhere), "{steps:?}");
    observed.modes.insert("/Volumes/fast/agent".into(), 0o755);
    observed.foreign.insert("/Volumes/fast/agent".into());
    let steps = install(&desired, &observed).unwrap();
    assert!(!steps.iter().any(is_chown_elsewhere), "{steps:?}");
    let is_about_models =
        |step: &Step| !matches!(step, Step::Write { .. }) && step.to_string().contains("models");
    assert!(!steps.iter().any(is_about_models), "{steps:?}");
}

#[test]
fn agent_without_a_control_plane_or_manifests_is_rejected() {
    let not_joined = Observed {
        has_joined: Some(false),
        ..joined()
    };
    let error = |daemon, arguments: &[&str]| install(&installation(daemon, arguments), &not_joined).err();
    let err = error(Daemon::Agent, &["--state-dir=/state"]).unwrap().to_string();
    assert!(err.contains("--state-dir /state"), "{err}");
    assert_eq!(error(Daemon::Agent, &["--manifest-dir=/manifests"]), None);
    assert_eq!(error(Daemon::Agent, &["--kubeconfig=/kubeconfig"]), None);
    assert_eq!(error(Daemon::Server, &[]), None);
}

#[test]
fn users_must_exist_and_agree() {
    let desired = Installation {
        user: "anna".to_owned(),
        ..installation(Daemon::Server, &[])
    };
    let user = "anna".to_owned();
    assert_eq!(
        install(&desired, &joined()).err(),
        Some(PlanError::NoSuchUser { user: user.clone() })
    );
    let mut observed = installed(&installation(Daemon::Agent, &[]));
    observed.accounts.users.insert(user.clone(), 501);
    let (other, theirs) = (Daemon::Agent, USER.to_owned());
    assert_eq!(
        install(&desired, &observed).err(),
        Some(PlanError::OtherUser { user, other, theirs })
    );
}

#[test]
fn removal_keeps_data_unless_purged() {
    let observed = installed(&installation(Daemon::Agent, &[]));
    let kept = uninstall(Daemon::Agent, false, &observed);
    let basic = [
        "run launchctl bootout system/dev.rooflet.agent",
        "delete /Library/LaunchDaemons/dev.rooflet.agent.plist",
    ];
    assert_eq!(shown(&kept), basic);
    let mut both = observed.clone();
    both.installed
        .insert(Daemon::Server, installation(Daemon::Server, &[]).job());
    both.modes.insert("/usr/local/bin/rooflet".into(), 0o755);
    let data = [
        "delete /usr/local/var/rooflet/agent",
        "delete /usr/local/var/rooflet/agent.log",
    ];
    let purged = shown(&uninstall(Daemon::Agent, true, &both));
    assert_eq!(purged, [basic, data].concat(), "the server needs binary and user");
    both.installed.remove(&Daemon::Server);
    let purged = shown(&uninstall(Daemon::Agent, true, &both));
    assert_eq!(
        purged[4..],
        [
            "delete /usr/local/bin/rooflet",
            "delete /usr/local/var/rooflet/models if it is empty",
            "delete /usr/local/var/rooflet if it is empty",
            "run dscl . -delete /Users/_rooflet",
            "run dscl . -delete /Groups/_rooflet",
        ]
    );
    assert_eq!(uninstall(Daemon::Agent, true, &Observed::default()), []);
}

#[test]
fn directories_outside_the_data_are_never_deleted() {
    for (directory, is_deleted) in [
        ("/usr/local/var/rooflet/agent", true),
        ("/usr/local/var/rooflet/nodes/a", true),
        ("/usr/local/var/rooflet", false),
        ("/usr/local/var/rooflet/models", false),
        ("/usr/local/var/rooflet/models/agent", false),
        ("/usr/local/var/rooflet/../..", false),
        ("/usr/local/var/rooflet/agent/../../../bin", false),
        ("/Users/anna/agent", false),
        ("/", false),
    ] {
        let desired = installation(Daemon::Agent, &[&format!("--state-dir={directory}")]);
        let observed = installed(&desired);
        assert_eq!(
            state_dir(Daemon::Agent, &observed).is_some(),
            is_deleted,
            "{directory}"
        );
    }
}
