/* SPDX-License-Identifier: Apache-2.0 */
/* The table of all commands. man/ and the shells' completions follow it; tests/integration/cli.t checks that.
 */
#include "cli/cli.h"

#define END_OPTIONS                               \
    {                                             \
        NULL, NULL, NULL, false, COMPLETE_NOTHING \
    }
#define OPTIONS(...)             \
    (const struct cli_option[])  \
    {                            \
        __VA_ARGS__, END_OPTIONS \
    }

#define YES                                                \
    {                                                      \
        "yes", NULL, "do not ask", false, COMPLETE_NOTHING \
    }
#define NO_WAIT                                                                                  \
    {                                                                                            \
        "no-wait", NULL, "return at once; the work goes on in the node", false, COMPLETE_NOTHING \
    }
#define WAIT                                                                    \
    {                                                                           \
        "wait", NULL, "wait for its end (the default)", false, COMPLETE_NOTHING \
    }
#define ALL                                                 \
    {                                                       \
        "all", NULL, "all volumes", false, COMPLETE_NOTHING \
    }
#define FORCE                                                                                              \
    {                                                                                                      \
        "force", NULL, "also over a foreign file system, partition table or pool", false, COMPLETE_NOTHING \
    }
#define RATE                                                                       \
    {                                                                              \
        "rate", "SIZE", "bytes a second at most, as 100M", false, COMPLETE_NOTHING \
    }

const struct cli_option cli_global_options[] = {
    {"socket", "PATH", "the node's control socket, DIR/ashlar.sock (-s; else $ASHLAR_SOCK)", false,
     COMPLETE_FILE},
    {"json", NULL, "answer in JSON", false, COMPLETE_NOTHING},
    {"help", NULL, "help on the command (-h)", false, COMPLETE_NOTHING},
    END_OPTIONS,
};

const struct cli_command cli_commands[] = {
    {"status", "", 0, 0, COMPLETE_NOTHING,
     OPTIONS({"no-wait", NULL, "also while the node starts: answer at once", false, COMPLETE_NOTHING}),
     "how the node, its drives and its volumes are",
     "Says whether all is well and what is not. Damaged ranges of volumes are named.\n", cmd_status},

    {"drive list", "", 0, 0, COMPLETE_NOTHING,
     OPTIONS({"all", NULL, "also drives that were removed", false, COMPLETE_NOTHING}),
     "the drives of the pool", NULL, cmd_drive_list},
    {"drive add", "PATH", 1, 1, COMPLETE_FILE,
     OPTIONS({"size", "SIZE", "of a file that is made", false, COMPLETE_NOTHING}, FORCE, YES),
     "take a device or file into the pool",
     "Formats PATH and uses it for new data. A file that does not exist is made. A drive of this pool that "
     "was\n"
     "missing is taken back as it is. Anything that holds something else is refused without --force; a "
     "device is asked for in any case.\n",
     cmd_drive_add},
    {"drive remove", "DRIVE", 1, 1, COMPLETE_DRIVE, OPTIONS(YES, NO_WAIT), "take a drive out of the pool",
     "DRIVE is its path or id. Refuses if a volume would lose data, or could not get its redundancy back on\n"
     "the other drives. Then its data is restored on them from the other copies.\n",
     cmd_drive_remove},
    {"drive replace", "OLD [NEW]", 1, 2, COMPLETE_DRIVE, OPTIONS(FORCE, YES, NO_WAIT),
     "put a new drive in the place of another one",
     "OLD is its path or id. NEW is formatted; without it, a new drive is made at OLD's path, if what is "
     "there\n"
     "is not a good drive. Then the volumes are repaired.\n",
     cmd_drive_replace},
    {"drive locate", "DRIVE", 1, 1, COMPLETE_DRIVE,
     OPTIONS({"seconds", "N", "how long (10)", false, COMPLETE_NOTHING}), "make a drive's light blink",
     "Reads from it, so that a person can find it by its light.\n", cmd_drive_locate},

    {"volume create", "NAME", 1, 1, COMPLETE_NOTHING,
     OPTIONS({"size", "SIZE", "its size; space is taken only as it is written", false, COMPLETE_NOTHING},
             {"protect", "P", "none, mirror:2 or mirror:3", false, COMPLETE_PROTECTION}),
     "make a volume", "Both --size and --protect are needed.\n", cmd_volume_create},
    {"volume list", "", 0, 0, COMPLETE_NOTHING, NULL, "all volumes", NULL, cmd_volume_list},
    {"volume show", "NAME", 1, 1, COMPLETE_VOLUME, NULL, "everything about one volume", NULL,
     cmd_volume_show},
    {"volume grow", "NAME SIZE", 1, 2, COMPLETE_VOLUME,
     OPTIONS({"size", "SIZE", "its new size, as the second argument", false, COMPLETE_NOTHING}),
     "make a volume larger", "Clients see the new size when they connect again.\n", cmd_volume_grow},
    {"volume delete", "NAME", 1, 1, COMPLETE_VOLUME, OPTIONS(YES, NO_WAIT),
     "delete a volume and all its data", "Clients are disconnected.\n", cmd_volume_delete},

    {"fs create", "NAME", 1, 1, COMPLETE_NOTHING,
     OPTIONS(
         {"protect", "P", "none, mirror:2 or mirror:3 (mirror:2 where there are two drives)", false,
          COMPLETE_PROTECTION},
         {"quota", "SIZE", "it may take at most that much of the pool", false, COMPLETE_NOTHING},
         {"case-insensitive", NULL, "names that differ only in case are the same", false, COMPLETE_NOTHING}),
     "make a file system", "It takes space of the pool only as files are written.\n", cmd_fs_create},
    {"fs list", "", 0, 0, COMPLETE_NOTHING, NULL, "all file systems", NULL, cmd_fs_list},
    {"fs show", "NAME", 1, 1, COMPLETE_VOLUME, NULL, "everything about one file system", NULL, cmd_fs_show},
    {"fs grow", "NAME SIZE|none", 2, 2, COMPLETE_VOLUME, NULL,
     "raise the quota of a file system, or take it away", NULL, cmd_fs_grow},
    {"fs delete", "NAME", 1, 1, COMPLETE_VOLUME, OPTIONS(YES, NO_WAIT),
     "delete a file system and all its files", "Clients are disconnected.\n", cmd_volume_delete},
    {"fs pattern", "NAME concurrency|streaming|random", 2, 2, COMPLETE_VOLUME,
     OPTIONS({"path", "DIR", "of this directory, and what will be made in it (/)", false, COMPLETE_NOTHING}),
     "say how files are read, so that read-ahead does the right thing", NULL, cmd_fs_pattern},

    {"fs check", "NAME", 1, 1, COMPLETE_VOLUME,
     OPTIONS({"repair", NULL, "mend it; what has lost its place goes to lost+found", false, COMPLETE_NOTHING},
             YES),
     "look whether all that is in a file system fits together",
     "Clients wait meanwhile. Exit codes: 0 all is well, 1 there are problems (left, with --repair).\n",
     cmd_fs_check},

    {"quota set", "NAME DIR", 2, 2, COMPLETE_VOLUME,
     OPTIONS({"size", "SIZE|none", "what is in the directory may take at most that much", false,
              COMPLETE_NOTHING},
             {"inodes", "N|none", "at most so many files and directories", false, COMPLETE_NOTHING}),
     "limit a directory of a file system",
     "Both limits are replaced. What is in the directory already is counted in the background. Quotas may "
     "lie in\n"
     "one another: the narrowest counts. Between directories of different quotas files are moved by "
     "copying.\n",
     cmd_quota_set},
    {"quota list", "NAME", 1, 1, COMPLETE_VOLUME, NULL, "the quotas of a file system and what they have used",
     NULL, cmd_quota_list},

    {"export", "NAME", 1, 1, COMPLETE_VOLUME,
     OPTIONS({"nbd", NULL, "a block volume, over NBD", false, COMPLETE_NOTHING},
             {"allow", "CIDR", "NBD: only clients of these networks, one or more", true, COMPLETE_NOTHING},
             {"read-only", NULL, "clients cannot write (--ro)", false, COMPLETE_NOTHING},
             {"nfs", NULL, "a file system, over NFSv3", false, COMPLETE_NOTHING},
             {"clients", "CIDR|HOST", "NFS: only these, one or more; all others learn nothing of it", true,
              COMPLETE_NOTHING},
             {"path", "DIR", "NFS: this directory of the file system (/)", false, COMPLETE_NOTHING},
             {"as", "PATH", "NFS: what clients mount (/NAME, with DIR behind it)", false, COMPLETE_NOTHING},
             {"rw", NULL, "clients can write (the default)", false, COMPLETE_NOTHING},
             {"ro", NULL, "clients cannot write", false, COMPLETE_NOTHING},
             {"root-squash", NULL, "NFS: the clients' root is the anonymous user (the default)", false,
              COMPLETE_NOTHING},
             {"no-root-squash", NULL, "NFS: the clients' root is root here", false, COMPLETE_NOTHING},
             {"all-squash", NULL, "NFS: everybody is the anonymous user", false, COMPLETE_NOTHING},
             {"anon-uid", "N", "NFS: the anonymous user (65534)", false, COMPLETE_NOTHING},
             {"anon-gid", "N", "NFS: its group (65534)", false, COMPLETE_NOTHING},
             {"secure", NULL, "NFS: only clients on ports below 1024", false, COMPLETE_NOTHING}),
     "offer a volume or a file system to clients",
     "It stays exported over restarts. A block volume has one export: exporting again with other options "
     "replaces\n"
     "it and disconnects the clients. A file system can export many directories, each under its own path; "
     "the same\n"
     "path again changes the terms, for the clients that are there too.\n",
     cmd_export},
    {"unexport", "NAME", 1, 1, COMPLETE_VOLUME,
     OPTIONS({"as", "PATH", "NFS: only this one of its exports", false, COMPLETE_NOTHING}),
     "offer a volume or a file system no longer", "Clients are disconnected.\n", cmd_unexport},

    {"mount", "NAME DIR", 2, 2, COMPLETE_VOLUME,
     OPTIONS(
         {"options", "LIST", "as in fstab: ro,noatime,writeback,attr_timeout=S,... (-o)", false,
          COMPLETE_NOTHING},
         {"writeback", NULL, "the kernel keeps writes for a while; for one writer only", false,
          COMPLETE_NOTHING},
         {"foreground", NULL, "serve in this process until it is unmounted (-f)", false, COMPLETE_NOTHING},
         {"fs-socket", "PATH", "the node's fs.sock (beside its control socket)", false, COMPLETE_FILE}),
     "mount a file system on this machine",
     "A process of its own serves the mount; it outlives the node: while that is away, whoever uses the "
     "mount\n"
     "waits. In fstab: ashlar#NAME DIR ashlar OPTIONS 0 0\n",
     cmd_mount},
    {"umount", "DIR", 1, 1, COMPLETE_FILE,
     OPTIONS(
         {"force", NULL, "what is under way fails", false, COMPLETE_NOTHING},
         {"lazy", NULL, "now, though it is in use; it goes when nothing uses it", false, COMPLETE_NOTHING}),
     "unmount it", "Works while the node is away, too.\n", cmd_umount},

    {"scrub", "NAME", 0, 1, COMPLETE_VOLUME, OPTIONS(ALL, RATE, WAIT, NO_WAIT),
     "read and verify every copy of everything, and repair it",
     "Interrupting the command does not interrupt the work.\n", cmd_scrub},
    {"repair", "NAME", 0, 1, COMPLETE_VOLUME, OPTIONS(ALL, RATE, WAIT, NO_WAIT),
     "restore the copies that drives lack",
     "It starts by itself when a drive is lost or comes back. Interrupting the command does not interrupt "
     "the\n"
     "work.\n",
     cmd_repair},

    {"top", "", 0, 0, COMPLETE_NOTHING,
     OPTIONS({"once", NULL, "one sample", false, COMPLETE_NOTHING},
             {"clients", NULL, "the clients of file systems, the busiest first", false, COMPLETE_NOTHING},
             {"ops", NULL, "operations of file systems, with their latencies", false, COMPLETE_NOTHING},
             {"files", NULL, "the files that are used most", false, COMPLETE_NOTHING},
             {"interval", "SECONDS", "between samples (1)", false, COMPLETE_NOTHING}),
     "live rates, latencies, queues and cache", NULL, cmd_top},
    {"events", "", 0, 0, COMPLETE_NOTHING,
     OPTIONS({"follow", NULL, "go on with those that come", false, COMPLETE_NOTHING},
             {"last", "N", "only the newest N", false, COMPLETE_NOTHING}),
     "what happened lately", NULL, cmd_events},
    {"check", "DIR", 1, 1, COMPLETE_FILE,
     OPTIONS({"memory", "SIZE", "to use at most (a quarter of the machine's)", false, COMPLETE_NOTHING},
             {"drive", "PATH", "where to look for drives that moved, one or more", true, COMPLETE_FILE}),
     "verify a whole stopped pool; writes nothing",
     "DIR is the folder that ashlard was given with --dir. Replays the logs in memory, compares all trees "
     "with\n"
     "the space they use, and reads every copy of every block. Says exactly what is wrong. Exit codes: 0 "
     "clean,\n"
     "1 damaged, 2 could not check (a node is running, no pool there).\n",
     cmd_check},
    {"inspect", "DIR|DRIVE", 1, 1, COMPLETE_FILE,
     OPTIONS({"volume", "NAME", "a volume of DIR", false, COMPLETE_NOTHING},
             {"roots", NULL, "its ring of roots", false, COMPLETE_NOTHING},
             {"log", NULL, "its log behind the newest root", false, COMPLETE_NOTHING},
             {"groups", NULL, "its groups and their members", false, COMPLETE_NOTHING},
             {"tree", NULL, "its pool tree", false, COMPLETE_NOTHING},
             {"head", NULL, "with --tree: the tree of its content instead", false, COMPLETE_NOTHING},
             {"extents", NULL, "its extents", false, COMPLETE_NOTHING},
             {"block", "GROUP:BLOCK", "one block of it, every copy", false, COMPLETE_NOTHING},
             {"blocks", "DRIVE", "what lies where on a drive of DIR", false, COMPLETE_FILE},
             {"memory", "SIZE", "to use at most (a quarter of the machine's)", false, COMPLETE_NOTHING},
             {"drive", "PATH", "where to look for drives that moved, one or more", true, COMPLETE_FILE}),
     "show the structures of a stopped pool; writes nothing",
     "Of a folder: its records and drives, or the volume named. Of a drive: superblocks, slab table, "
     "fences.\n"
     "Shows what is on the drives: no log is replayed. Exit codes: 0 all was whole, 1 some was damaged,\n"
     "2 could not look.\n",
     cmd_inspect},
    {"version", "", 0, 0, COMPLETE_NOTHING, NULL, "versions of this program and of the node", NULL,
     cmd_version},
    {"completion", "SHELL", 1, 1, COMPLETE_SHELL, NULL, "print the completion for bash or zsh",
     "    ashlar completion bash >/etc/bash_completion.d/ashlar\n"
     "    ashlar completion zsh >/usr/local/share/zsh/site-functions/_ashlar\n",
     cmd_completion},
    {"help", "[COMMAND]", 0, 2, COMPLETE_NOTHING, NULL, "this help, or help on a command", NULL, cmd_help},
    {NULL, NULL, 0, 0, COMPLETE_NOTHING, NULL, NULL, NULL, NULL},
};
