use std::os::unix::fs::symlink;

use super::*;
use rooflet_testing::TempDir;

/// System in a directory, with a service's state directory.
struct Fixture {
    directory: TempDir,
    files: Files,
    state: Utf8PathBuf,
}

/// User who owns no file of the test.
fn other_user() -> u32 {
    rustix::process::geteuid().as_raw() + 1
}

impl Fixture {
    fn new() -> Self {
        let directory = TempDir::new();
        let files = Files::below(directory.path());
        let state = Utf8Path::new(DATA).join("agent");
        fs::create_dir_all(files.place(&state)).unwrap();
        fs::write(directory.path().join("secret"), "secret").unwrap();
        Self {
            directory,
            files,
            state,
        }
    }

    /// File of the system that the service must not own.
    fn secret(&self) -> Utf8PathBuf {
        self.directory.path().join("secret")
    }

    fn own(&self, path: &Utf8Path) -> Result<()> {
        self.files.own(path, other_user(), true)
    }

    #[track_caller]
    fn assert_rejected(&self, path: &Utf8Path, named: &Utf8Path) {
        let err = self.own(path).unwrap_err();
        let text = err.to_string();
        assert!(text.contains(named.as_str()), "{text}");
        assert_ne!(fs::metadata(self.secret()).unwrap().uid(), other_user());
    }
}

#[test]
fn linked_files_of_the_system_keep_their_owner() {
    let fixture = Fixture::new();
    let state = fixture.files.place(&fixture.state);
    let (link, log) = (state.join("kubeconfig"), Utf8Path::new(DATA).join("agent.log"));
    fs::hard_link(fixture.secret(), &link).unwrap();
    fixture.assert_rejected(&fixture.state, &link);
    fs::hard_link(fixture.secret(), fixture.files.place(&log)).unwrap();
    fixture.assert_rejected(&log, &log);
    fs::remove_file(fixture.files.place(&log)).unwrap();
    symlink(fixture.secret(), fixture.files.place(&log)).unwrap();
    fixture.assert_rejected(&log, &log);
}

#[test]
fn links_to_directories_are_not_followed() {
    let fixture = Fixture::new();
    let data = fixture.files.place(Utf8Path::new(DATA));
    symlink(fixture.directory.path(), data.join("nodes")).unwrap();
    for below in ["nodes", "nodes/usr"] {
        let path = Utf8Path::new(DATA).join(below);
        fixture.assert_rejected(&path, &path);
    }
    let path = Utf8Path::new(DATA).join("nodes/../../secret");
    fixture.assert_rejected(&path, &path);
    let err = fixture
        .files
        .create_directory(&Utf8Path::new(DATA).join("nodes"), 0o700);
    err.unwrap_err();
}

#[test]
fn links_and_pipes_in_a_directory_are_skipped() {
    let fixture = Fixture::new();
    let state = fixture.files.place(&fixture.state);
    fs::create_dir(state.join("replicas")).unwrap();
    for directory in [state.clone(), state.join("replicas")] {
        symlink(fixture.secret(), directory.join("link")).unwrap();
        let mode = nix::sys::stat::Mode::S_IRWXU;
        nix::unistd::mkfifo(directory.join("pipe").as_std_path(), mode).unwrap();
    }
    fs::write(state.join("replicas/log"), "").unwrap();
    let owner = |path: &Utf8Path| fs::symlink_metadata(path).unwrap().uid();
    let user = rustix::process::geteuid();
    // Only root may change owners.
    let user = if user.is_root() {
        other_user()
    } else {
        user.as_raw()
    };
    fixture.files.own(&fixture.state, user, true).unwrap();
    for path in [state.clone(), state.join("replicas"), state.join("replicas/log")] {
        assert_eq!(owner(&path), user, "{path}");
    }
    assert_ne!(owner(&fixture.secret()), other_user());
    assert!(fixture.files.are_owned(&fixture.state, Some(user)));
}

#[test]
fn copy_replaces_the_leftover_of_an_interrupted_one() {
    let fixture = Fixture::new();
    let (build, to) = (
        fixture.directory.path().join("build"),
        Utf8Path::new("/usr/local/rooflet"),
    );
    fs::write(&build, "version 2").unwrap();
    fs::hard_link(fixture.secret(), copy_of(&fixture.files.place(to))).unwrap();
    fixture.files.copy(&build, to).unwrap();
    fixture.files.rename(to).unwrap();
    assert_eq!(fs::read_to_string(fixture.files.place(to)).unwrap(), "version 2");
    assert_eq!(fs::read_to_string(fixture.secret()).unwrap(), "secret");
    let found = fs::metadata(fixture.files.place(to)).unwrap();
    assert_eq!(found.permissions().mode() & 0o777, 0o755);
}

#[test]
fn installed_file_of_another_user_is_replaceable() {
    let fixture = Fixture::new();
    let path = Utf8Path::new("/secret");
    let with_owner = |owner| Files {
        root: fixture.directory.path().to_owned(),
        owner,
    };
    assert!(with_owner(Some(other_user())).is_replaceable(path));
    assert!(!with_owner(Some(other_user() - 1)).is_replaceable(path));
    assert!(!with_owner(None).is_replaceable(path));
    fs::set_permissions(fixture.secret(), Permissions::from_mode(0o775)).unwrap();
    assert!(with_owner(Some(other_user() - 1)).is_replaceable(path));
    assert!(!with_owner(Some(other_user())).is_replaceable(Utf8Path::new("/missing")));
}
