//! The page of the configuration file: every flag of the server and of agents as a line of it.

use std::collections::BTreeSet;

use clap::{Arg, ArgAction, Command};

use crate::heading;

pub fn page(mut command: Command) -> String {
    command.build();
    let mut out = heading("Configuration file");
    out.push_str(
        "`/etc/corten/config.yaml`, or the file of `--config-file`. A key is the name of a flag, a list gives it several \
         times. Every command takes the flags that it has; those of the command line win. `corten config check` checks \
         the file.\n",
    );
    let mut shown = BTreeSet::new();
    for name in ["server", "agent"] {
        let Some(found) = command.find_subcommand(name) else { continue };
        out.push_str(&format!("\n## Flags of `corten {name}`\n\n```yaml\n"));
        for argument in found.get_arguments().filter(|argument| is_setting(argument)) {
            // A flag that both have means the same to both.
            if shown.insert(argument.get_long().unwrap_or_default().to_owned()) {
                out.push_str(&line(argument));
            }
        }
        out.push_str("```\n");
    }
    out
}

fn is_setting(argument: &Arg) -> bool {
    let name = argument.get_long().unwrap_or_default();
    !argument.is_hide_set() && !["", "help", "version", "config-file"].contains(&name)
}

fn line(argument: &Arg) -> String {
    let help = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults = argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned());
    let default = defaults.collect::<Vec<_>>().join(",");
    let value = match (argument.get_action(), default.as_str()) {
        (ArgAction::SetTrue, _) => "false".to_owned(),
        (_, "") => {
            argument.get_value_names().and_then(|names| names.first()).map(ToString::to_string).unwrap_or_default()
        }
        (_, default) => default.to_owned(),
    };
    format!("# {}\n# {}: {value}\n", help.replace('\n', " "), argument.get_long().unwrap_or_default())
}
