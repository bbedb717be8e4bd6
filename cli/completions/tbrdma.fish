# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_tbrdma_global_optspecs
    string join \n h/help V/version
end

function __fish_tbrdma_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_tbrdma_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_tbrdma_using_subcommand
    set -l cmd (__fish_tbrdma_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c tbrdma -n "__fish_tbrdma_needs_command" -s h -l help -d 'Print help'
complete -c tbrdma -n "__fish_tbrdma_needs_command" -s V -l version -d 'Print version'
complete -c tbrdma -n "__fish_tbrdma_needs_command" -f -a "status" -d 'Show the RDMA device, the hosts it reaches, and the cables and rails to them'
complete -c tbrdma -n "__fish_tbrdma_using_subcommand status" -l root -d 'Read from the sys directory in DIR instead of /sys' -r -F
complete -c tbrdma -n "__fish_tbrdma_using_subcommand status" -l json -d 'Print one JSON object'
complete -c tbrdma -n "__fish_tbrdma_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
