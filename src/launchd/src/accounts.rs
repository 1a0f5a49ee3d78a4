//! Users and groups of a Mac, as `dscl` lists and creates them.

use std::collections::BTreeMap;

use crate::step::Invocation;

/// Ids of new users and groups, highest first. macOS hides users with ids below 500. Apple assigns the
/// ids of its services from 200 up.
const IDS: std::ops::RangeInclusive<u32> = 300..=399;

/// Names and ids of the users and groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Accounts {
    pub(crate) users: BTreeMap<String, u32>,
    pub(crate) groups: BTreeMap<String, u32>,
}

/// Parses the output of `dscl . -list PATH KEY`: one name and id per line.
pub(crate) fn parse(output: &str) -> BTreeMap<String, u32> {
    let account = |line: &str| {
        let mut words = line.split_whitespace();
        Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
    };
    output.lines().filter_map(account).collect()
}

impl Accounts {
    /// Returns the commands that create a user without a password, a shell and a home directory, and
    /// its group. `None` if all ids are in use.
    pub(crate) fn create(&self, name: &str) -> Option<Vec<Invocation>> {
        let is_used = |id: &u32| {
            self.users
                .values()
                .chain(self.groups.values())
                .any(|used| used == id)
        };
        let user = IDS.rev().find(|id| !is_used(id))?;
        // An interrupted installation can leave the group.
        let group = self.groups.get(name).copied();
        let id = group.unwrap_or(user).to_string();
        let create = |record: &str, key: &str, value: &str| {
            let words = [".", "-create", record, key, value];
            Invocation::new("/usr/bin/dscl", words.into_iter().filter(|word| !word.is_empty()))
        };
        let (of_user, of_group) = (format!("/Users/{name}"), format!("/Groups/{name}"));
        let user = user.to_string();
        let group = match group {
            Some(_) => Vec::new(),
            None => vec![
                create(&of_group, "", ""),
                create(&of_group, "PrimaryGroupID", &id),
            ],
        };
        let keys = [
            ("RealName", "rooflet"),
            ("PrimaryGroupID", &id),
            ("UserShell", "/usr/bin/false"),
            ("NFSHomeDirectory", "/var/empty"),
            ("Password", "*"),
            ("IsHidden", "1"),
            // Last, because the user is listed as soon as it has an id.
            ("UniqueID", &user),
        ];
        let keys = keys.iter().map(|(key, value)| create(&of_user, key, value));
        Some(
            group
                .into_iter()
                .chain([create(&of_user, "", "")])
                .chain(keys)
                .collect(),
        )
    }

    /// Returns the commands that delete a user and its group.
    pub(crate) fn delete(&self, name: &str) -> Vec<Invocation> {
        let delete = |record: &str| {
            let record = format!("/{record}/{name}");
            Invocation::new("/usr/bin/dscl", [".", "-delete", &record])
        };
        let user = self.users.contains_key(name).then(|| delete("Users"));
        let group = self.groups.contains_key(name).then(|| delete("Groups"));
        user.into_iter().chain(group).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Part of the list of a Mac.
    const USERS: &str = "_www                       70\nnobody                     -2\nroot                       0\nanna                       501\n_ard                       399\n";

    #[test]
    fn users_are_listed_by_name_and_id() {
        let users = parse(USERS);
        assert_eq!(users.get("anna"), Some(&501));
        // `nobody` has a negative id, which no program may use.
        assert_eq!(users.len(), 4);
    }

    #[test]
    fn new_user_has_an_id_that_neither_users_nor_groups_have() {
        let groups = BTreeMap::from([("com.apple.access_ssh".to_owned(), 398)]);
        let accounts = Accounts {
            users: parse(USERS),
            groups,
        };
        let commands: Vec<_> = accounts.create("_rooflet").unwrap();
        let shown: Vec<_> = commands.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown[..2],
            [
                "dscl . -create /Groups/_rooflet",
                "dscl . -create /Groups/_rooflet PrimaryGroupID 397"
            ]
        );
        assert_eq!(
            shown.last().unwrap(),
            "dscl . -create /Users/_rooflet UniqueID 397"
        );
        assert!(
            shown.contains(&"dscl . -create /Users/_rooflet Password '*'".to_owned()),
            "{shown:?}"
        );
        assert_eq!(accounts.delete("_rooflet"), []);
    }

    #[test]
    fn group_of_an_interrupted_installation_is_used() {
        let accounts = Accounts {
            users: BTreeMap::new(),
            groups: BTreeMap::from([("_rooflet".to_owned(), 399)]),
        };
        let shown: Vec<_> = accounts
            .create("_rooflet")
            .unwrap()
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(shown[0], "dscl . -create /Users/_rooflet");
        assert!(
            shown.contains(&"dscl . -create /Users/_rooflet PrimaryGroupID 399".to_owned()),
            "{shown:?}"
        );
        let all = (300..=399).map(|id| (format!("u{id}"), id)).collect();
        let full = Accounts {
            users: all,
            groups: BTreeMap::new(),
        };
        assert_eq!(full.create("_rooflet"), None);
    }
}
