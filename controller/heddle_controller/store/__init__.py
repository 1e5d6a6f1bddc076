"""What must survive a crash: intent, programs, epoch and generation, behind one port."""
