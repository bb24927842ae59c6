// A TCP proxy of one connection to one connection, as Go's tcpproxy does it: LISTEN UPSTREAM.
package main

import (
	"log"
	"os"

	"github.com/inetaf/tcpproxy"
)

func main() {
	var proxy tcpproxy.Proxy
	proxy.AddRoute(os.Args[1], tcpproxy.To(os.Args[2]))
	log.Fatal(proxy.Run())
}
