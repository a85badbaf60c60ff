"""Settings: their one table, the profiles and keys they come from, and the `Account` or `Config` they make.

Called by the command line, and by the mount for its `Config`. Makes no API call.
Locks: none.
"""

from cloudsimfs.config.accounts import (
    Account,
    Api,
    account,
    account_dir,
    account_dirs,
    cache_base,
    launches_dir,
    other_accounts,
    state_dir,
)
from cloudsimfs.config.mountconfig import KERNEL_SHARE, Config, cache_limit, mount_config
from cloudsimfs.config.precedence import PROFILE_VARIABLE, Settings, Value, resolve, unknown_profile

__all__ = [
    "KERNEL_SHARE",
    "PROFILE_VARIABLE",
    "Account",
    "Api",
    "Config",
    "Settings",
    "Value",
    "account",
    "account_dir",
    "account_dirs",
    "cache_base",
    "cache_limit",
    "launches_dir",
    "mount_config",
    "other_accounts",
    "resolve",
    "state_dir",
    "unknown_profile",
]
