module sluice/go_proxy

go 1.24

require github.com/inetaf/tcpproxy v0.0.0-20260515195445-c159a6051109
